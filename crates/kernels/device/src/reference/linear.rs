//! Linear layers.

use super::Reference;
use crate::ops::{LinearOps, LinearShape};
use crate::tensor::{View, ViewMut};

impl LinearOps for Reference {
    fn linear(
        &self,
        shape: LinearShape,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    ) {
        let (x, weight, y) = (x.as_slice(), weight.as_slice(), y.as_slice());
        let bias = bias.map(View::as_slice::<f64>);
        check(shape, x, weight, y);
        let LinearShape { rows, inputs, outputs } = shape;
        for row in 0..rows {
            for out in 0..outputs {
                let products = (0..inputs).map(|i| x[row * inputs + i] * weight[out * inputs + i]);
                y[row * outputs + out] = products.sum::<f64>() + bias.map_or(0.0, |bias| bias[out]);
            }
        }
    }

    fn linear_backward_input(
        &self,
        shape: LinearShape,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        accumulate: bool,
    ) {
        let (dy, weight, dx) = (dy.as_slice(), weight.as_slice(), dx.as_slice());
        check(shape, dx, weight, dy);
        let LinearShape { rows, inputs, outputs } = shape;
        for row in 0..rows {
            for i in 0..inputs {
                let products = (0..outputs).map(|o| dy[row * outputs + o] * weight[o * inputs + i]);
                let before = if accumulate { dx[row * inputs + i] } else { 0.0 };
                dx[row * inputs + i] = before + products.sum::<f64>();
            }
        }
    }

    fn linear_backward_weight(
        &self,
        shape: LinearShape,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    ) {
        let (x, dy, dweight) = (x.as_slice(), dy.as_slice(), dweight.as_slice());
        check(shape, x, dweight, dy);
        let LinearShape { rows, inputs, outputs } = shape;
        for row in 0..rows {
            for out in 0..outputs {
                for i in 0..inputs {
                    dweight[out * inputs + i] += dy[row * outputs + out] * x[row * inputs + i];
                }
            }
        }
        dbias.into_iter().for_each(|dbias| add_column_sums(dy, dbias.as_slice()));
    }
}

/// Adds the column sums of `x` to `sums`.
pub fn add_column_sums(x: &[f64], sums: &mut [f64]) {
    for row in x.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}

fn check(shape: LinearShape, x: &[f64], weight: &[f64], y: &[f64]) {
    assert_eq!(x.len(), shape.rows * shape.inputs);
    assert_eq!(weight.len(), shape.outputs * shape.inputs);
    assert_eq!(y.len(), shape.rows * shape.outputs);
}
