//! Cross-entropy.

use std::ops::Range;

use super::Reference;
use crate::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartial, CrossEntropyPartialsArgs,
    LossOps, merge_partials,
};
use crate::tensor::{View, ViewMut};

impl LossOps for Reference {
    fn cross_entropy(&self, args: CrossEntropyArgs<'_>) {
        let CrossEntropyArgs { targets, vocab, logits, grad_scale, loss } = args;
        let (targets, loss) = (targets.as_slice::<i32>(), &mut loss.as_slice::<f64>()[0]);
        let logits = logits.as_slice::<f64>();
        let row_len = logits.len() / targets.len();
        for (target, row) in targets.iter().zip(logits.chunks_exact_mut(row_len)) {
            let (target, (logits, padding)) = (*target as usize, row.split_at_mut(vocab));
            let (max, sum_exp) = max_and_sum_exp(logits);
            *loss += max + sum_exp.ln() - logits[target];
            let Some(scale) = grad_scale else { continue };
            logits.iter_mut().for_each(|x| *x = (*x - max).exp() / sum_exp * scale);
            logits[target] -= scale;
            padding.fill(0.0);
        }
    }

    fn cross_entropy_partials(&self, args: CrossEntropyPartialsArgs<'_>) {
        let CrossEntropyPartialsArgs { targets, vocab, logits, partials } = args;
        let targets = targets.as_slice::<i32>();
        let (logits, partials) = (logits.as_slice::<f64>(), partials.as_slice::<f64>());
        let row_len = logits.len() / targets.len();
        assert_eq!(partials.len(), 3 * targets.len());
        for (row, target) in targets.iter().enumerate() {
            let logits = &logits[row * row_len..(row + 1) * row_len][..vocab.len()];
            let (max, sum_exp) = max_and_sum_exp(logits);
            let target_logit = local_column(*target, &vocab).map_or(0.0, |at| logits[at]);
            partials[3 * row..3 * row + 3].copy_from_slice(&[max, sum_exp, target_logit]);
        }
    }

    fn merge_cross_entropy_partials(
        &self,
        partials: View<'_>,
        merged: ViewMut<'_>,
        loss: Option<ViewMut<'_>>,
    ) {
        let (partials, merged) = (partials.as_slice::<f64>(), merged.as_slice::<f64>());
        let rows = merged.len() / 3;
        assert!(partials.len().is_multiple_of(3 * rows));
        let mut sum = 0.0;
        for row in 0..rows {
            let of_row = partials.chunks_exact(3 * rows).map(|set| {
                CrossEntropyPartial::from([set[3 * row], set[3 * row + 1], set[3 * row + 2]])
            });
            let CrossEntropyPartial { max, sum_exp, target_logit } = merge_partials(of_row);
            merged[3 * row..3 * row + 3].copy_from_slice(&[max, sum_exp, target_logit]);
            sum += CrossEntropyPartial { max, sum_exp, target_logit }.loss();
        }
        loss.into_iter().for_each(|loss| loss.as_slice::<f64>()[0] += sum);
    }

    fn cross_entropy_backward(&self, args: CrossEntropyBackwardArgs<'_>) {
        let CrossEntropyBackwardArgs { targets, vocab, merged, logits, grad_scale } = args;
        let targets = targets.as_slice::<i32>();
        let (merged, logits) = (merged.as_slice::<f64>(), logits.as_slice::<f64>());
        let row_len = logits.len() / targets.len();
        assert_eq!(merged.len(), 3 * targets.len());
        for (row, target) in targets.iter().enumerate() {
            let padded = &mut logits[row * row_len..(row + 1) * row_len];
            let (logits, padding) = padded.split_at_mut(vocab.len());
            let (max, sum_exp) = (merged[3 * row], merged[3 * row + 1]);
            logits.iter_mut().for_each(|x| *x = (*x - max).exp() / sum_exp * grad_scale);
            if let Some(column) = local_column(*target, &vocab) {
                logits[column] -= grad_scale;
            }
            padding.fill(0.0);
        }
    }
}

fn max_and_sum_exp(logits: &[f64]) -> (f64, f64) {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (max, logits.iter().map(|x| (x - max).exp()).sum())
}

/// The column of a target, if it is local.
fn local_column(target: i32, vocab: &Range<usize>) -> Option<usize> {
    vocab.contains(&(target as usize)).then(|| target as usize - vocab.start)
}
