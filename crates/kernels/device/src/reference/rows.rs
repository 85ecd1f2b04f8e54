//! What is done to rows: norms, activations, copies of columns.

use std::ops::Range;

use crate::device::{Norm, NormSaved};

pub fn norm(
    how: Norm,
    x: &[f64],
    weight: &[f64],
    bias: Option<&[f64]>,
    y: &mut [f64],
    statistics: &mut [f64],
) {
    let width = weight.len();
    assert_eq!(statistics.len(), 2 * (x.len() / width));
    for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
        let (mean, epsilon) = match how {
            Norm::Layer { epsilon } => (x.iter().sum::<f64>() / width as f64, epsilon),
            Norm::Rms { epsilon } => (0.0, epsilon),
        };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let scale = 1.0 / (variance + epsilon).sqrt();
        for i in 0..width {
            y[i] = (x[i] - mean) * scale * weight[i] + bias.map_or(0.0, |bias| bias[i]);
        }
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = scale;
    }
}

pub fn norm_back(
    how: Norm,
    saved: NormSaved<'_>,
    dy: &[f64],
    dx: &mut [f64],
    dweight: &mut [f64],
    mut dbias: Option<&mut [f64]>,
) {
    let (x, weight, statistics) =
        (saved.x.host::<f64>(), saved.weight.host::<f64>(), saved.statistics.host::<f64>());
    let width = weight.len();
    for (row, x) in x.chunks_exact(width).enumerate() {
        let here = row * width..(row + 1) * width;
        let (dy, dx) = (&dy[here.clone()], &mut dx[here]);
        let (mean, scale) = (statistics[2 * row], statistics[2 * row + 1]);
        let normed: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
        let upstream: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
        let mean_of = |f: &dyn Fn(usize) -> f64| (0..width).map(f).sum::<f64>() / width as f64;
        let along = mean_of(&|i| upstream[i] * normed[i]);
        let shift = match how {
            Norm::Layer { .. } => mean_of(&|i| upstream[i]),
            Norm::Rms { .. } => 0.0,
        };
        for i in 0..width {
            dx[i] += (upstream[i] - shift - normed[i] * along) * scale;
            dweight[i] += dy[i] * normed[i];
            if let Some(dbias) = &mut dbias {
                dbias[i] += dy[i];
            }
        }
    }
}

pub fn map(x: &[f64], y: &mut [f64], function: impl Fn(f64) -> f64) {
    assert_eq!(x.len(), y.len());
    y.iter_mut().zip(x).for_each(|(y, x)| *y = function(*x));
}

/// The factor inside of GELU's tangent: √(2/π).
const FACTOR: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044_715;

pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (FACTOR * (x + CUBE * x.powi(3))).tanh())
}

pub fn gelu_slope(x: f64) -> f64 {
    let tanh = (FACTOR * (x + CUBE * x.powi(3))).tanh();
    let inner = FACTOR * (1.0 + 3.0 * CUBE * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn swiglu(width: usize, x: &[f64], y: &mut [f64]) {
    assert_eq!(x.len(), 2 * y.len());
    for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
        let (gate, up) = x.split_at(width);
        (0..width).for_each(|i| y[i] = gate[i] * sigmoid(gate[i]) * up[i]);
    }
}

pub fn swiglu_back(width: usize, x: &[f64], dy: &[f64], dx: &mut [f64]) {
    assert_eq!((x.len(), dx.len()), (2 * dy.len(), 2 * dy.len()));
    let rows = x.chunks_exact(2 * width).zip(dx.chunks_exact_mut(2 * width));
    for ((x, dx), dy) in rows.zip(dy.chunks_exact(width)) {
        for i in 0..width {
            let (gate, up, s) = (x[i], x[width + i], sigmoid(x[i]));
            dx[i] = dy[i] * up * s * (1.0 + gate * (1.0 - s));
            dx[width + i] = dy[i] * gate * s;
        }
    }
}

pub fn take_columns(from: &[f64], wide: usize, columns: Range<usize>, to: &mut [f64]) {
    assert_eq!(from.len() * columns.len(), to.len() * wide);
    for (row, from) in from.chunks_exact(wide).enumerate() {
        let here = row * columns.len()..(row + 1) * columns.len();
        to[here].copy_from_slice(&from[columns.clone()]);
    }
}

pub fn put_columns(from: &[f64], to: &mut [f64], wide: usize, columns: Range<usize>) {
    assert_eq!(to.len() * columns.len(), from.len() * wide);
    for (row, to) in to.chunks_exact_mut(wide).enumerate() {
        let here = row * columns.len()..(row + 1) * columns.len();
        to[columns.clone()].copy_from_slice(&from[here]);
    }
}
