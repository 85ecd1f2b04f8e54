//! Linear layers and norms.

use super::*;
use regatta_device::ops::{LinearShape, Norm, NormGrads, NormInputGrad, NormSaved};
use regatta_device::{DeviceMemory, NormOps};

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
fn linear_gelu_matches_reference() {
    for [rows, inputs, outputs] in SHAPES {
        let shape = LinearShape { rows, inputs, outputs };
        let (x, w, y) = (Act(rows * inputs), Master(outputs * inputs), Act(rows * outputs));
        let specs = [x, w, Master(outputs), y, y];
        check_reference(&format!("{shape:?}"), specs, |device, [x, weight, bias, saved, y]| {
            let (x, weight, bias) = (x.view(), weight.view(), Some(bias.view()));
            device.linear_gelu(shape, x, weight, bias, saved, y);
        });
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
                let specs = [x, y, param, param, x, y, stats];
                check_reference(&what, specs, |device, [x, delta, weight, bias, sum, y, stats]| {
                    let (x, delta, weight) = (x.view(), delta.view(), weight.view());
                    let bias = with_bias.then(|| bias.view());
                    device.add_norm(norm, x, delta, weight, bias, sum, y, stats);
                });
                for with_copy in [false, true] {
                    let specs = [x, param, stats, y, x, y, param, param];
                    check_reference(&what, specs, |device, all| {
                        let [x, weight, stats, dy, dx, copy, dw, db] = all;
                        let (x, weight, mean_rstd) = (x.view(), weight.view(), stats.view());
                        let saved = NormSaved { x, weight, mean_rstd };
                        let grads = NormGrads { weight: dw, bias: with_bias.then_some(db) };
                        let copy = with_copy.then_some(copy);
                        let input_grad = NormInputGrad { copy, ..NormInputGrad::new(dx) };
                        device.norm_backward(norm, saved, dy.view(), input_grad, grads);
                    });
                }
            }
        }
    }
}

#[test]
fn dx_copy_is_the_accumulated_gradient() {
    let (rows, dim) = (17, 33);
    for cpu in devices() {
        let (x, y, param) = (Master(rows * dim), Act(rows * dim), Master(dim));
        let mut all = tensors(&cpu, &[x, param, Master(2 * rows), y, x, y, param, param]);
        let [x, weight, stats, dy, dx, copy, dw, db] = &mut all[..] else { unreachable!() };
        let before = to_host(&cpu, std::slice::from_ref(dx));
        let saved = NormSaved { x: x.view(), weight: weight.view(), mean_rstd: stats.view() };
        let grads = NormGrads { weight: dw.view_mut(), bias: Some(db.view_mut()) };
        let (norm, copy_to) = (Norm::Layer { eps: 1e-5 }, Some(copy.view_mut()));
        let input_grad = NormInputGrad { copy: copy_to, ..NormInputGrad::new(dx.view_mut()) };
        cpu.norm_backward(norm, saved, dy.view(), input_grad, grads);
        assert_ne!(to_host(&cpu, std::slice::from_ref(dx)), before);
        let mut expected = cpu.zeros_activation(rows * dim);
        cpu.copy(dx.view(), expected.view_mut());
        let [copy, expected] =
            [copy, &mut expected].map(|tensor| to_host(&cpu, std::slice::from_ref(tensor)));
        assert_eq!(copy, expected, "{}", cpu.describe());
    }
}
