//! Matrix products.

use crate::device::Linear;

pub fn linear(of: Linear, x: &[f64], weight: &[f64], bias: Option<&[f64]>, y: &mut [f64]) {
    check(of, x, weight, y);
    for row in 0..of.rows {
        for out in 0..of.outputs {
            let products =
                (0..of.inputs).map(|i| x[row * of.inputs + i] * weight[out * of.inputs + i]);
            y[row * of.outputs + out] = products.sum::<f64>() + bias.map_or(0.0, |bias| bias[out]);
        }
    }
}

pub fn back_input(of: Linear, dy: &[f64], weight: &[f64], dx: &mut [f64], add: bool) {
    check(of, dx, weight, dy);
    for row in 0..of.rows {
        for i in 0..of.inputs {
            let products =
                (0..of.outputs).map(|o| dy[row * of.outputs + o] * weight[o * of.inputs + i]);
            let before = if add { dx[row * of.inputs + i] } else { 0.0 };
            dx[row * of.inputs + i] = before + products.sum::<f64>();
        }
    }
}

pub fn back_weight(
    of: Linear,
    x: &[f64],
    dy: &[f64],
    dweight: &mut [f64],
    dbias: Option<&mut [f64]>,
) {
    check(of, x, dweight, dy);
    for row in 0..of.rows {
        for out in 0..of.outputs {
            for i in 0..of.inputs {
                dweight[out * of.inputs + i] += dy[row * of.outputs + out] * x[row * of.inputs + i];
            }
        }
    }
    let Some(dbias) = dbias else { return };
    for row in dy.chunks_exact(of.outputs) {
        dbias.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
    }
}

fn check(of: Linear, x: &[f64], weight: &[f64], y: &[f64]) {
    assert_eq!(x.len(), of.rows * of.inputs);
    assert_eq!(weight.len(), of.outputs * of.inputs);
    assert_eq!(y.len(), of.rows * of.outputs);
}
