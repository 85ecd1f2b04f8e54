//! Linear layers and norms.

use super::*;
use regatta_device::ops::{LinearShape, Norm, NormGrads, NormSaved};

const SHAPES: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (1, 17, 3),
    (5, 1, 33),
    (7, 16, 1),
    (33, 31, 65),
    (64, 48, 32),
    (100, 70, 130),
    (130, 64, 200),
];

#[test]
fn linear_matches_reference() {
    for (rows, inputs, outputs) in SHAPES {
        let shape = LinearShape { rows, inputs, outputs };
        let what = format!("{shape:?}");
        let (x, w, y) = (Act(rows * inputs), Master(outputs * inputs), Act(rows * outputs));
        for with_bias in [false, true] {
            assert_matches_reference(&what, &[x, w, Master(outputs), y], |device, t| {
                let [x, weight, bias, y] = t else { unreachable!() };
                let bias = with_bias.then(|| bias.view());
                device.linear(shape, x.view(), weight.view(), bias, y.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn linear_backward_matches_reference() {
    for (rows, inputs, outputs) in SHAPES {
        let shape = LinearShape { rows, inputs, outputs };
        let what = format!("{shape:?}");
        let (x, w, y) = (Act(rows * inputs), Master(outputs * inputs), Act(rows * outputs));
        for accumulate in [false, true] {
            for dx in [Act(rows * inputs), Master(rows * inputs)] {
                assert_matches_reference(&what, &[y, w, dx], |device, t| {
                    let [dy, weight, dx] = t else { unreachable!() };
                    let (dy, weight, dx) = (dy.view(), weight.view(), dx.view_mut());
                    device.linear_backward_input(shape, dy, weight, dx, accumulate);
                    0.0
                });
            }
            assert_matches_reference(&what, &[x, y, w, Master(outputs)], |device, t| {
                let [x, dy, dweight, dbias] = t else { unreachable!() };
                let dbias = accumulate.then(|| dbias.view_mut());
                let (x, dy, dweight) = (x.view(), dy.view(), dweight.view_mut());
                device.linear_backward_weight(shape, x, dy, dweight, dbias);
                0.0
            });
        }
    }
}

#[test]
fn norm_matches_reference() {
    for norm in [Norm::Layer { eps: 1e-5 }, Norm::Rms { eps: 1e-6 }] {
        for (rows, dim) in [(1, 1), (3, 5), (1, 16), (17, 33), (40, 128), (700, 50)] {
            let elements = rows * dim;
            let what = format!("{norm:?} of {rows} rows of {dim}");
            let specs =
                [Master(elements), Master(dim), Master(dim), Act(elements), Master(2 * rows)];
            for with_bias in [false, true] {
                assert_matches_reference(&what, &specs, |device, t| {
                    let [x, weight, bias, y, mean_rstd] = t else { unreachable!() };
                    let bias = with_bias.then(|| bias.view());
                    let (y, mean_rstd) = (y.view_mut(), mean_rstd.view_mut());
                    device.norm(norm, x.view(), weight.view(), bias, y, mean_rstd);
                    0.0
                });
                let specs = [
                    Master(elements),
                    Master(dim),
                    Master(2 * rows),
                    Act(elements),
                    Master(elements),
                    Master(dim),
                    Master(dim),
                ];
                assert_matches_reference(&what, &specs, |device, t| {
                    let [x, weight, mean_rstd, dy, dx, dweight, dbias] = t else { unreachable!() };
                    let saved = NormSaved {
                        x: x.view(),
                        weight: weight.view(),
                        mean_rstd: mean_rstd.view(),
                    };
                    let bias = with_bias.then(|| dbias.view_mut());
                    let grads = NormGrads { weight: dweight.view_mut(), bias };
                    device.norm_backward(norm, saved, dy.view(), dx.view_mut(), grads);
                    0.0
                });
            }
        }
    }
}
