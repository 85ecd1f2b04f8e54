//! Activations, elementwise operations, copies and optimizers.

use std::ops::Range;

use super::*;
use regatta_device::ops::OptimizerState;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::random::DropoutMask;
use regatta_device::{ActivationOps, DeviceMemory, OptimizerOps};

const LENGTHS: [usize; 6] = [1, 15, 16, 100, 4099, 33_000];

#[test]
fn activations_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        check_reference(&what, [Act(len), Act(len)], |device, [x, y]| device.gelu(x, y));
        check_reference(&what, [Act(len), Act(len)], |device, [derivative, dy]| {
            device.gelu_backward(derivative.view(), dy, None)
        });
    }
    for (rows, dim) in [(1, 1), (3, 16), (5, 33), (700, 50), (40, 300)] {
        let what = format!("{rows} rows of {dim}");
        let specs = [Act(rows * dim), Act(rows * dim), Master(dim)];
        check_reference(&what, specs, |device, [derivative, dy, dbias]| {
            device.gelu_backward(derivative.view(), dy, Some(dbias))
        });
    }
    for (rows, dim) in [(1, 1), (3, 16), (5, 33), (700, 50)] {
        let (out_len, gate_up_len) = (rows * dim, 2 * rows * dim);
        let what = format!("{rows} rows of {dim}");
        check_reference(&what, [Act(gate_up_len), Act(out_len)], |device, [x, y]| {
            device.swiglu(dim, x.view(), y)
        });
        let specs = [Act(gate_up_len), Act(out_len), Act(gate_up_len)];
        check_reference(&what, specs, |device, [x, dy, dx]| {
            device.swiglu_backward(dim, x.view(), dy.view(), dx)
        });
    }
}

#[test]
fn elementwise_operations_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        for (x, y) in [(Master(len), Act(len)), (Act(len), Master(len))] {
            check_result(&what, &[x, y], |device, t| {
                let [x, y] = t else { unreachable!() };
                let mut sum = scalar(device, 1.5);
                device.add_assign(x.view(), y.view_mut());
                device.sum_of_squares(y.view(), sum.view_mut());
                read_scalar(device, &sum)
            });
            check_reference(&what, [x, y, x], |device, [x, y, z]| {
                device.add(x.view(), y.view(), z)
            });
            check_reference(&what, [x, y], |device, [x, y]| {
                device.copy(x.view(), y);
                device.scale(0.75, x);
            });
            check_reference(&what, [x, y], |device, [x, y]| {
                device.zero(x);
                let mask = DropoutMask { p: 0.2, key: key(9, &[]), offset: 77 };
                device.dropout(mask, y);
            });
        }
    }
}

#[test]
fn column_copies_match_reference() {
    let cases = [(1, 1, 0..1), (3, 40, 7..39), (700, 50, 0..17), (9, 20, 4..4)];
    for (rows, row_len, columns) in cases {
        let (full, part) = (rows * row_len, rows * columns.len());
        let what = format!("{columns:?} of {rows} rows of {row_len}");
        for specs in [[Master(full), Act(part)], [Act(full), Act(part)], [Act(full), Master(part)]]
        {
            check_reference(&what, specs, |device, [full, part]| {
                device.copy_from_columns(full.view(), row_len, columns.clone(), part)
            });
            check_reference(&what, specs, |device, [full, part]| {
                device.copy_to_columns(part.view(), full, row_len, columns.clone());
                device.fill(-2.5, part);
            });
        }
    }
}

#[test]
fn bias_gradient_of_gelu_is_the_sum_of_the_rows() {
    let (rows, dim) = (70, 37);
    for cpu in devices() {
        let mut all = tensors(&cpu, &[Act(rows * dim), Act(rows * dim), Master(dim)]);
        let initial = to_host(&cpu, &all[2..]).remove(0);
        let [derivative, dy, dbias] = &mut all[..] else { unreachable!() };
        cpu.gelu_backward(derivative.view(), dy.view_mut(), Some(dbias.view_mut()));
        let [dy, dbias] = [1, 2].map(|at| to_host(&cpu, &all[at..=at]).remove(0));
        let mut expected = initial;
        for row in dy.chunks_exact(dim) {
            expected.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
        }
        assert_eq!(dbias, expected, "{}", cpu.describe());
    }
}

#[test]
fn sums_of_squares_are_added_to_the_scalar() {
    for cpu in devices() {
        let x = tensors(&cpu, &[Master(4099)]).remove(0);
        let [once, twice] = [1, 2].map(|calls| {
            let mut sum = scalar(&cpu, 0.0);
            (0..calls).for_each(|_| cpu.sum_of_squares(x.view(), sum.view_mut()));
            read_scalar(&cpu, &sum)
        });
        assert_eq!(twice, 2.0 * once, "{}", cpu.describe());
    }
}

/// None, some that are adjacent and end within a vector, and all.
fn decayed_ranges(len: usize) -> [Vec<Range<usize>>; 3] {
    let some = vec![len / 7..len / 3, len / 3..len / 2, len * 3 / 4..len * 5 / 6];
    [vec![], some, std::iter::once(0..len).collect()]
}

#[test]
fn optimizers_match_reference() {
    let (lr, weight_decay) = (0.1, 0.1);
    let adamw = AdamW { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step: 3 };
    let sgd = Sgd { lr, momentum: 0.9, weight_decay: 0.01 };
    for (len, decayed) in LENGTHS.into_iter().flat_map(|len| decayed_ranges(len).map(|d| (len, d)))
    {
        let what = format!("{len} with decay in {decayed:?}");
        check_reference(&what, [Master(len); 4], |device, [g, m, mut v, p]| {
            // Second moments are not negative.
            let mut squares = random_values(2, len);
            squares.iter_mut().for_each(|x| *x = *x * *x);
            device.copy_from_host(&squares, v.reborrow());
            device.adamw(&adamw, state(&g, &scalar(device, 0.5), [m, v, p], &decayed));
        });
        check_reference(&what, [Master(len); 4], |device, [g, m, v, p]| {
            device.sgd(&sgd, state(&g, &scalar(device, 0.5), [m, v, p], &decayed));
        });
    }
}

fn state<'a>(
    grad: &'a ViewMut<'_>,
    grad_scale: &'a Tensor,
    [moment1, moment2, param]: [ViewMut<'a>; 3],
    decayed: &'a [Range<usize>],
) -> OptimizerState<'a> {
    let (grad, grad_scale) = (grad.view(), grad_scale.view());
    let factors = None;
    OptimizerState { factors, grad, grad_scale, moment1, moment2, param, weight: None, decayed }
}

#[test]
fn weight_decay_applies_to_decayed_ranges_only() {
    let (len, lr, weight_decay) = (100, 0.5, 0.5);
    let decayed = [3..20, 20..41, 90..100];
    let adamw = AdamW { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step: 1 };
    for cpu in devices() {
        // Without gradients and moments, decay is all that changes parameters.
        let [grad, mut m, mut v] = [(); 3].map(|()| cpu.zeros_master(len));
        let mut all = tensors(&cpu, &[Master(len)]);
        let mut expected = to_host(&cpu, &all).remove(0);
        let ranges = || decayed.iter().cloned();
        ranges().flatten().for_each(|at| expected[at] *= 0.75);
        let (m, v, p) = (m.view_mut(), v.view_mut(), all[0].view_mut());
        let grad_scale = scalar(&cpu, 1.0);
        let (grad, grad_scale, decayed) = (grad.view(), grad_scale.view(), &decayed[..]);
        let (moment1, moment2, param, weight) = (m, v, p, None);
        cpu.adamw(
            &adamw,
            OptimizerState {
                factors: None,
                grad,
                grad_scale,
                moment1,
                moment2,
                param,
                weight,
                decayed,
            },
        );
        assert_eq!(to_host(&cpu, &all).remove(0), expected, "{}", cpu.describe());
    }
}

#[test]
fn clip_coefficient_limits_the_norm_of_one_copy() {
    let cpu = Cpu::new(1, Precision::F32);
    // Sum of squares, copies, maximum norm and coefficient.
    let cases = [
        (16.0, 1.0, 1.0, 1.0 / 4.000_001),
        (16.0, 4.0, 1.0, 1.0 / 2.000_001),
        (0.25, 1.0, 1.0, 1.0),
        (16.0, 1.0, 0.0, 1.0),
    ];
    for (sum, copies, max_norm, expected) in cases {
        let mut found = scalar(&cpu, 0.0);
        let sum = scalar(&cpu, sum);
        cpu.clip_coefficient(sum.view(), copies, max_norm, found.view_mut());
        assert!((read_scalar(&cpu, &found) - expected).abs() < 1e-15, "{max_norm} {copies}");
    }
}
