//! LayerNorm and RMSNorm.

use super::Reference;
use super::linear::add_column_sums;
use crate::ops::{Norm, NormArgs, NormBackwardArgs, NormInputGrad, NormOps};
use crate::tensor::{View, ViewMut};

impl NormOps for Reference {
    fn norm(&self, args: NormArgs<'_>) {
        let NormArgs { norm, x, weight, bias, y, mean_rstd } = args;
        let (x, weight, y) = (x.as_slice::<f64>(), weight.as_slice::<f64>(), y.as_slice::<f64>());
        let (bias, mean_rstd) = (bias.map(View::as_slice::<f64>), mean_rstd.as_slice::<f64>());
        let dim = weight.len();
        assert_eq!(mean_rstd.len(), 2 * (x.len() / dim));
        for (row, (x, y)) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).enumerate() {
            let (mean, eps) = match norm {
                Norm::Layer { eps } => (x.iter().sum::<f64>() / dim as f64, eps),
                Norm::Rms { eps } => (0.0, eps),
            };
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / dim as f64;
            let rstd = 1.0 / (variance + eps).sqrt();
            for i in 0..dim {
                y[i] = (x[i] - mean) * rstd * weight[i] + bias.map_or(0.0, |bias| bias[i]);
            }
            mean_rstd[2 * row] = mean;
            mean_rstd[2 * row + 1] = rstd;
        }
    }

    fn norm_backward(&self, args: NormBackwardArgs<'_>) {
        let NormInputGrad { dx, copy, column_sums } = args.input_grad;
        let NormBackwardArgs { norm, x, weight, mean_rstd, dy, .. } = args;
        let [x, weight, mean_rstd, dy] = [x, weight, mean_rstd, dy].map(View::as_slice::<f64>);
        let [dx, dweight] = [dx, args.dweight].map(ViewMut::as_slice::<f64>);
        let mut dbias = args.dbias.map(ViewMut::as_slice::<f64>);
        let dim = weight.len();
        for (row, x) in x.chunks_exact(dim).enumerate() {
            let local = row * dim..(row + 1) * dim;
            let (dy, dx) = (&dy[local.clone()], &mut dx[local]);
            let (mean, rstd) = (mean_rstd[2 * row], mean_rstd[2 * row + 1]);
            let normalised: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
            let upstream: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
            let mean_of = |f: &dyn Fn(usize) -> f64| (0..dim).map(f).sum::<f64>() / dim as f64;
            let projection = mean_of(&|i| upstream[i] * normalised[i]);
            let shift = match norm {
                Norm::Layer { .. } => mean_of(&|i| upstream[i]),
                Norm::Rms { .. } => 0.0,
            };
            for i in 0..dim {
                dx[i] += (upstream[i] - shift - normalised[i] * projection) * rstd;
                dweight[i] += dy[i] * normalised[i];
                if let Some(dbias) = &mut dbias {
                    dbias[i] += dy[i];
                }
            }
        }
        copy.into_iter().for_each(|copy| copy.as_slice::<f64>().copy_from_slice(dx));
        if let Some(sums) = column_sums.map(ViewMut::as_slice::<f64>) {
            sums.fill(0.0);
            add_column_sums(dx, sums);
        }
    }
}
