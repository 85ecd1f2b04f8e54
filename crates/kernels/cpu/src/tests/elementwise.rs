//! Activations, elementwise operations, copies and optimizers.

use super::*;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::random::DropoutMask;

const LENGTHS: [usize; 6] = [1, 15, 16, 100, 4099, 33_000];

#[test]
fn activations_match_reference() {
    for len in LENGTHS {
        let what = format!("{len}");
        check_reference(&what, [Act(len), Act(len)], |device, [x, y]| device.gelu(x, y));
        check_reference(&what, [Act(len), Act(len)], |device, [derivative, dy]| {
            device.gelu_backward(derivative.view(), dy)
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
                device.add_assign(x.view(), y.view_mut());
                device.sum_of_squares(y.view())
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
fn optimizers_match_reference() {
    let (lr, weight_decay, grad_scale) = (0.1, 0.1, 0.5);
    let adamw = AdamW { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step: 3, grad_scale };
    let sgd = Sgd { lr, momentum: 0.9, weight_decay: 0.01, grad_scale };
    for len in LENGTHS {
        let what = format!("{len}");
        check_reference(&what, [Master(len); 4], |device, [g, m, mut v, p]| {
            // Second moments are not negative.
            let mut squares = random_values(2, len);
            squares.iter_mut().for_each(|x| *x = *x * *x);
            device.copy_from_host(&squares, v.reborrow());
            device.adamw(&adamw, g.view(), [m, v], p);
        });
        check_reference(&what, [Master(len); 3], |device, [g, m, p]| {
            device.sgd(&sgd, g.view(), m, p)
        });
    }
}
