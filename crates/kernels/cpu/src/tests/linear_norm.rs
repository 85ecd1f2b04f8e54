//! Linear layers and norms.

use super::*;
use regatta_device::ops::{
    LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape, Norm, NormArgs,
    NormBackwardArgs, NormInputGrad,
};
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
                let (x, weight, bias) = (x.view(), weight.view(), bias.view());
                let bias = with_bias.then_some(bias);
                device.linear(LinearArgs { shape, x, weight, bias, y });
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
                    let (dy, weight) = (dy.view(), weight.view());
                    let args = LinearBackwardInputArgs { shape, dy, weight, dx, accumulate };
                    device.linear_backward_input(args);
                });
            }
            let specs = [x, y, w, Master(outputs)];
            check_reference(&what, specs, |device, [x, dy, dweight, dbias]| {
                let (x, dy, dbias) = (x.view(), dy.view(), accumulate.then_some(dbias));
                let args = LinearBackwardWeightArgs { shape, x, dy, dweight, dbias };
                device.linear_backward_weight(args);
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
            device.linear_gelu(LinearArgs { shape, x, weight, bias, y }, saved);
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
                    let (x, weight, bias) = (x.view(), weight.view(), bias.view());
                    let bias = with_bias.then_some(bias);
                    device.norm(NormArgs { norm, x, weight, bias, y, mean_rstd });
                });
                let specs = [x, y, param, param, x, y, stats];
                check_reference(&what, specs, |device, [x, delta, weight, bias, sum, y, stats]| {
                    let (x, delta, weight) = (x.view(), delta.view(), weight.view());
                    let bias = with_bias.then(|| bias.view());
                    let args = NormArgs { norm, x, weight, bias, y, mean_rstd: stats };
                    device.add_norm(args, delta, sum);
                });
                for with_copy in [false, true] {
                    let specs = [x, param, stats, y, x, y, param, param];
                    check_reference(&what, specs, |device, all| {
                        let [x, weight, stats, dy, dx, copy, dweight, db] = all;
                        let copy = with_copy.then_some(copy);
                        device.norm_backward(NormBackwardArgs {
                            norm,
                            x: x.view(),
                            weight: weight.view(),
                            mean_rstd: stats.view(),
                            dy: dy.view(),
                            input_grad: NormInputGrad { copy, ..NormInputGrad::new(dx) },
                            dweight,
                            dbias: with_bias.then_some(db),
                        });
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
        let copy_to = Some(copy.view_mut());
        cpu.norm_backward(NormBackwardArgs {
            norm: Norm::Layer { eps: 1e-5 },
            x: x.view(),
            weight: weight.view(),
            mean_rstd: stats.view(),
            dy: dy.view(),
            input_grad: NormInputGrad { copy: copy_to, ..NormInputGrad::new(dx.view_mut()) },
            dweight: dw.view_mut(),
            dbias: Some(db.view_mut()),
        });
        assert_ne!(to_host(&cpu, std::slice::from_ref(dx)), before);
        let mut expected = cpu.zeros_activation(rows * dim);
        cpu.copy(dx.view(), expected.view_mut());
        let [copy, expected] =
            [copy, &mut expected].map(|tensor| to_host(&cpu, std::slice::from_ref(tensor)));
        assert_eq!(copy, expected, "{}", cpu.describe());
    }
}
