//! GELU and SwiGLU.

use super::Reference;
use super::linear::add_column_sums;
use crate::ops::ActivationOps;
use crate::tensor::{View, ViewMut};

/// √(2/π) of the tanh approximation of GELU.
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

impl ActivationOps for Reference {
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        let (x, y) = (x.as_slice::<f64>(), y.as_slice::<f64>());
        assert_eq!(x.len(), y.len());
        for (x, y) in x.iter_mut().zip(y) {
            (*y, *x) = (gelu(*x), gelu_derivative(*x));
        }
    }

    fn gelu_backward(&self, derivative: View<'_>, dy: ViewMut<'_>, dbias: Option<ViewMut<'_>>) {
        let dy = dy.as_slice::<f64>();
        dy.iter_mut().zip(derivative.as_slice::<f64>()).for_each(|(dy, d)| *dy *= d);
        dbias.into_iter().for_each(|dbias| add_column_sums(dy, dbias.as_slice()));
    }

    fn swiglu(&self, dim: usize, x: View<'_>, y: ViewMut<'_>) {
        let (x, y) = (x.as_slice::<f64>(), y.as_slice::<f64>());
        assert_eq!(x.len(), 2 * y.len());
        for (x, y) in x.chunks_exact(2 * dim).zip(y.chunks_exact_mut(dim)) {
            let (gate, up) = x.split_at(dim);
            (0..dim).for_each(|i| y[i] = gate[i] * sigmoid(gate[i]) * up[i]);
        }
    }

    fn swiglu_backward(&self, dim: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        let (x, dy, dx) = (x.as_slice::<f64>(), dy.as_slice::<f64>(), dx.as_slice::<f64>());
        assert_eq!((x.len(), dx.len()), (2 * dy.len(), 2 * dy.len()));
        let rows = x.chunks_exact(2 * dim).zip(dx.chunks_exact_mut(2 * dim));
        for ((x, dx), dy) in rows.zip(dy.chunks_exact(dim)) {
            for i in 0..dim {
                let (gate, up, s) = (x[i], x[dim + i], sigmoid(x[i]));
                dx[i] = dy[i] * up * s * (1.0 + gate * (1.0 - s));
                dx[dim + i] = dy[i] * gate * s;
            }
        }
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + CUBIC * x.powi(3))).tanh())
}

fn gelu_derivative(x: f64) -> f64 {
    let tanh = (SQRT_2_OVER_PI * (x + CUBIC * x.powi(3))).tanh();
    let inner = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
