//! Linear layers and norms.

use super::*;
use regatta_device::ops::{LinearShape, Norm, NormGrads, NormSaved};

/// Rows, inputs and outputs.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [1, 17, 3],
    [5, 1, 33],
    [7, 16, 1],
    [33, 31, 65],
    [64, 48, 32],
    [100, 70, 130],
    [130, 64, 200],
];

#[test]
fn linear_matches_reference() {
    for [rows, inputs, outputs] in SHAPES {
        let shape = LinearShape { rows, inputs, outputs };
        let what = format!("{shape:?}");
        let (x, w, y) = (Act(rows * inputs), Master(outputs * inputs), Act(rows * outputs));
        for with_bias in [false, true] {
            let specs = [x, w, Master(outputs), y];
            check_reference(&what, specs, |device, [x, weight, bias, y]| {
                let bias = with_bias.then(|| bias.view());
                device.linear(shape, x.view(), weight.view(), bias, y);
            });
        }
    }
}

#[test]
fn linear_backward_matches_reference() {
    for [rows, inputs, outputs] in SHAPES {
        let shape = LinearShape { rows, inputs, outputs };
        let what = format!("{shape:?}");
        let (x, w, y) = (Act(rows * inputs), Master(outputs * inputs), Act(rows * outputs));
        for accumulate in [false, true] {
            for dx in [Act(rows * inputs), Master(rows * inputs)] {
                check_reference(&what, [y, w, dx], |device, [dy, weight, dx]| {
                    device.linear_backward_input(shape, dy.view(), weight.view(), dx, accumulate);
                });
            }
            let specs = [x, y, w, Master(outputs)];
            check_reference(&what, specs, |device, [x, dy, dweight, dbias]| {
                let dbias = accumulate.then_some(dbias);
                device.linear_backward_weight(shape, x.view(), dy.view(), dweight, dbias);
            });
        }
    }
}

#[test]
fn norm_matches_reference() {
    for norm in [Norm::Layer { eps: 1e-5 }, Norm::Rms { eps: 1e-6 }] {
        for (rows, dim) in [(1, 1), (3, 5), (1, 16), (17, 33), (40, 128), (700, 50)] {
            let what = format!("{norm:?} of {rows} rows of {dim}");
            let (x, y, param) = (Master(rows * dim), Act(rows * dim), Master(dim));
            let stats = Master(2 * rows);
            for with_bias in [false, true] {
                let specs = [x, param, param, y, stats];
                check_reference(&what, specs, |device, [x, weight, bias, y, mean_rstd]| {
                    let bias = with_bias.then(|| bias.view());
                    device.norm(norm, x.view(), weight.view(), bias, y, mean_rstd);
                });
                let specs = [x, param, stats, y, x, param, param];
                check_reference(&what, specs, |device, [x, weight, stats, dy, dx, dw, db]| {
                    let (x, weight, mean_rstd) = (x.view(), weight.view(), stats.view());
                    let saved = NormSaved { x, weight, mean_rstd };
                    let grads = NormGrads { weight: dw, bias: with_bias.then_some(db) };
                    device.norm_backward(norm, saved, dy.view(), dx, grads);
                });
            }
        }
    }
}
