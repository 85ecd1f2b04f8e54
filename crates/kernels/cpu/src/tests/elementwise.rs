//! Activations, elementwise operations, copies and optimizers.

use super::*;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::random::DropoutMask;

const LENGTHS: [usize; 6] = [1, 15, 16, 100, 4099, 33_000];

#[test]
fn activations_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        assert_matches_reference(&what, &[Act(len), Act(len)], |device, t| {
            let [x, y] = t else { unreachable!() };
            device.gelu(x.view_mut(), y.view_mut());
            0.0
        });
        assert_matches_reference(&what, &[Act(len), Act(len)], |device, t| {
            let [derivative, dy] = t else { unreachable!() };
            device.gelu_backward(derivative.view(), dy.view_mut());
            0.0
        });
    }
    for (rows, dim) in [(1, 1), (3, 16), (5, 33), (700, 50)] {
        let (out_len, gate_up_len) = (rows * dim, 2 * rows * dim);
        let what = format!("{rows} rows of {dim}");
        assert_matches_reference(&what, &[Act(gate_up_len), Act(out_len)], |device, t| {
            let [x, y] = t else { unreachable!() };
            device.swiglu(dim, x.view(), y.view_mut());
            0.0
        });
        let specs = [Act(gate_up_len), Act(out_len), Act(gate_up_len)];
        assert_matches_reference(&what, &specs, |device, t| {
            let [x, dy, dx] = t else { unreachable!() };
            device.swiglu_backward(dim, x.view(), dy.view(), dx.view_mut());
            0.0
        });
    }
}

#[test]
fn elementwise_operations_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        for (x, y) in [(Master(len), Act(len)), (Act(len), Master(len))] {
            assert_matches_reference(&what, &[x, y], |device, t| {
                let [x, y] = t else { unreachable!() };
                device.add_assign(x.view(), y.view_mut());
                device.sum_of_squares(y.view())
            });
            assert_matches_reference(&what, &[x, y, x], |device, t| {
                let [x, y, z] = t else { unreachable!() };
                device.add(x.view(), y.view(), z.view_mut());
                0.0
            });
            assert_matches_reference(&what, &[x, y], |device, t| {
                let [x, y] = t else { unreachable!() };
                device.copy(x.view(), y.view_mut());
                device.scale(0.75, x.view_mut());
                0.0
            });
            assert_matches_reference(&what, &[x, y], |device, t| {
                let [x, y] = t else { unreachable!() };
                device.zero(x.view_mut());
                let mask = DropoutMask { p: 0.2, key: key(9, &[]), offset: 77 };
                device.dropout(mask, y.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn column_copies_match_reference() {
    for (rows, row_len, columns) in [(1, 1, 0..1), (3, 40, 7..39), (700, 50, 0..17), (9, 20, 4..4)]
    {
        let (full, part) = (rows * row_len, rows * columns.len());
        let what = format!("{columns:?} of {rows} rows of {row_len}");
        for specs in [[Master(full), Act(part)], [Act(full), Act(part)], [Act(full), Master(part)]]
        {
            assert_matches_reference(&what, &specs, |device, t| {
                let [full, part] = t else { unreachable!() };
                device.copy_from_columns(full.view(), row_len, columns.clone(), part.view_mut());
                0.0
            });
            assert_matches_reference(&what, &specs, |device, t| {
                let [full, part] = t else { unreachable!() };
                device.copy_to_columns(part.view(), full.view_mut(), row_len, columns.clone());
                device.fill(-2.5, part.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn optimizers_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        assert_matches_reference(&what, &[Master(len); 4], |device, t| {
            let [g, m, v, p] = t else { unreachable!() };
            // Second moments are not negative.
            let mut squares = random_values(2, len);
            squares.iter_mut().for_each(|x| *x = *x * *x);
            device.copy_from_host(&squares, v.view_mut());
            let config = AdamW {
                lr: 0.1,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                weight_decay: 0.1,
                step: 3,
                grad_scale: 0.5,
            };
            device.adamw(&config, g.view(), [m.view_mut(), v.view_mut()], p.view_mut());
            0.0
        });
        assert_matches_reference(&what, &[Master(len); 3], |device, t| {
            let [g, m, p] = t else { unreachable!() };
            let config = Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.01, grad_scale: 0.5 };
            device.sgd(&config, g.view(), m.view_mut(), p.view_mut());
            0.0
        });
    }
}
