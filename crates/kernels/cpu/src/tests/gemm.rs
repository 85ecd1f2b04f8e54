//! Matrix products and norms: what sums over rows or columns.

use super::*;

const LINEARS: [(usize, usize, usize); 8] = [
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
fn linear() {
    for (rows, inputs, outputs) in LINEARS {
        let of = LinearShape { rows, inputs, outputs };
        let what = format!("{of:?}");
        let (x, w, y) = (Act(rows * inputs), Real(outputs * inputs), Act(rows * outputs));
        for with_bias in [false, true] {
            same(&what, &[x, w, Real(outputs), y], |device, t| {
                let (before, y) = t.split_at_mut(3);
                let bias = with_bias.then(|| before[2].view());
                device.linear(of, before[0].view(), before[1].view(), bias, y[0].view_mut());
                0.0
            });
        }
    }
}

#[test]
fn linear_backward() {
    for (rows, inputs, outputs) in LINEARS {
        let of = LinearShape { rows, inputs, outputs };
        let what = format!("{of:?}");
        let (x, w, y) = (Act(rows * inputs), Real(outputs * inputs), Act(rows * outputs));
        for add in [false, true] {
            for dx in [Act(rows * inputs), Real(rows * inputs)] {
                same(&what, &[y, w, dx], |device, t| {
                    let (before, dx) = t.split_at_mut(2);
                    let (dy, w) = (before[0].view(), before[1].view());
                    device.linear_back_input(of, dy, w, dx[0].view_mut(), add);
                    0.0
                });
            }
            same(&what, &[x, y, w, Real(outputs)], |device, t| {
                let (before, after) = t.split_at_mut(2);
                let (dw, db) = after.split_at_mut(1);
                let db = add.then(|| db[0].view_mut());
                let (x, dy) = (before[0].view(), before[1].view());
                device.linear_back_weight(of, x, dy, dw[0].view_mut(), db);
                0.0
            });
        }
    }
}

#[test]
fn norm() {
    for how in [Norm::Layer { epsilon: 1e-5 }, Norm::Rms { epsilon: 1e-6 }] {
        for (rows, width) in [(1, 1), (3, 5), (1, 16), (17, 33), (40, 128), (700, 50)] {
            let elements = rows * width;
            let what = format!("{how:?} of {rows} rows of {width}");
            let kinds = [Real(elements), Real(width), Real(width), Act(elements), Real(2 * rows)];
            for with_bias in [false, true] {
                same(&what, &kinds, |device, t| {
                    let [x, weight, bias, y, mean_rstd] = t else { panic!() };
                    let bias = with_bias.then(|| bias.view());
                    let (y, mean_rstd) = (y.view_mut(), mean_rstd.view_mut());
                    device.norm(how, x.view(), weight.view(), bias, y, mean_rstd);
                    0.0
                });
                let kinds = [
                    Real(elements),
                    Real(width),
                    Real(2 * rows),
                    Act(elements),
                    Real(elements),
                    Real(width),
                    Real(width),
                ];
                same(&what, &kinds, |device, t| {
                    let [x, weight, mean_rstd, dy, dx, dweight, dbias] = t else { panic!() };
                    let saved = NormSaved {
                        x: x.view(),
                        weight: weight.view(),
                        mean_rstd: mean_rstd.view(),
                    };
                    let bias = with_bias.then(|| dbias.view_mut());
                    let grads = NormGrads { weight: dweight.view_mut(), bias };
                    device.norm_back(how, saved, dy.view(), dx.view_mut(), grads);
                    0.0
                });
            }
        }
    }
}
