//! Linear layers.

use super::Reference;
use crate::ops::{
    LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearOps, LinearShape,
};
use crate::tensor::View;

impl LinearOps for Reference {
    fn linear(&self, args: LinearArgs<'_>) {
        let LinearArgs { shape, x, weight, bias, y } = args;
        shape.check_lengths(x.len(), weight.len(), y.len());
        let (x, weight, y) = (x.as_slice::<f64>(), weight.as_slice::<f64>(), y.as_slice::<f64>());
        let bias = bias.map(View::as_slice::<f64>);
        let LinearShape { rows, inputs, outputs } = shape;
        for row in 0..rows {
            for out in 0..outputs {
                let products = (0..inputs).map(|i| x[row * inputs + i] * weight[out * inputs + i]);
                y[row * outputs + out] = products.sum::<f64>() + bias.map_or(0.0, |bias| bias[out]);
            }
        }
    }

    fn linear_backward_input(&self, args: LinearBackwardInputArgs<'_>) {
        let LinearBackwardInputArgs { shape, dy, weight, dx, accumulate } = args;
        shape.check_lengths(dx.len(), weight.len(), dy.len());
        let (dy, weight, dx) =
            (dy.as_slice::<f64>(), weight.as_slice::<f64>(), dx.as_slice::<f64>());
        let LinearShape { rows, inputs, outputs } = shape;
        for row in 0..rows {
            for i in 0..inputs {
                let products = (0..outputs).map(|o| dy[row * outputs + o] * weight[o * inputs + i]);
                let before = if accumulate { dx[row * inputs + i] } else { 0.0 };
                dx[row * inputs + i] = before + products.sum::<f64>();
            }
        }
    }

    fn linear_backward_weight(&self, args: LinearBackwardWeightArgs<'_>) {
        let LinearBackwardWeightArgs { shape, x, dy, dweight, dbias } = args;
        shape.check_lengths(x.len(), dweight.len(), dy.len());
        let (x, dy, dweight) = (x.as_slice::<f64>(), dy.as_slice(), dweight.as_slice::<f64>());
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
