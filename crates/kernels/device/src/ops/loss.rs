//! Cross-entropy, also vocabulary-parallel.

use std::ops::Range;

use crate::tensor::{View, ViewMut, row_count};

/// Partial cross-entropy of a row over some columns of its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyPartial {
    /// Maximum logit.
    pub max: f64,
    /// Sum of `exp(logit - max)`.
    pub sum_exp: f64,
    /// Logit of the target, 0 if it is in other columns.
    pub target_logit: f64,
}

impl CrossEntropyPartial {
    /// The cross-entropy, if all columns are included.
    pub fn loss(&self) -> f64 {
        self.max - self.target_logit + self.sum_exp.ln()
    }
}

impl From<[f64; 3]> for CrossEntropyPartial {
    fn from([max, sum_exp, target_logit]: [f64; 3]) -> Self {
        Self { max, sum_exp, target_logit }
    }
}

/// Merges the partials of disjoint columns of a row.
pub fn merge_partials(
    partials: impl Iterator<Item = CrossEntropyPartial> + Clone,
) -> CrossEntropyPartial {
    let max = partials.clone().map(|partial| partial.max).fold(f64::NEG_INFINITY, f64::max);
    // f64::max ignores NaN, but a NaN sum still propagates here.
    let sum_exp = partials.clone().map(|partial| partial.sum_exp * (partial.max - max).exp()).sum();
    let target_logit = partials.map(|partial| partial.target_logit).sum();
    CrossEntropyPartial { max, sum_exp, target_logit }
}

/// Elements of a row of `elements` logits, `vocab` and padding.
///
/// # Panics
/// If the rows have fewer.
pub fn logit_row_len(elements: usize, rows: usize, vocab: usize) -> usize {
    let row_len = row_count(elements, rows);
    assert!(vocab <= row_len, "rows of {row_len} elements have no logits of {vocab} tokens");
    row_len
}

/// Arguments of [`LossOps::cross_entropy`].
#[derive(Debug)]
pub struct CrossEntropyArgs<'a> {
    /// Target tokens.
    pub targets: View<'a>,
    /// Tokens that have logits.
    pub vocab: usize,
    /// Rows of logits.
    pub logits: ViewMut<'a>,
    /// Factor of the gradient.
    pub grad_scale: Option<f64>,
    /// Scalar that losses are added to.
    pub loss: ViewMut<'a>,
}

/// Arguments of [`LossOps::cross_entropy_partials`].
#[derive(Debug)]
pub struct CrossEntropyPartialsArgs<'a> {
    /// Target tokens.
    pub targets: View<'a>,
    /// Tokens that have logits.
    pub vocab: Range<usize>,
    /// Rows of logits.
    pub logits: View<'a>,
    /// Three elements per row.
    pub partials: ViewMut<'a>,
}

/// Arguments of [`LossOps::cross_entropy_backward`].
#[derive(Debug)]
pub struct CrossEntropyBackwardArgs<'a> {
    /// Target tokens.
    pub targets: View<'a>,
    /// Tokens that have logits.
    pub vocab: Range<usize>,
    /// Merged partials of all columns.
    pub merged: View<'a>,
    /// Rows of logits.
    pub logits: ViewMut<'a>,
    /// Factor of the gradient.
    pub grad_scale: f64,
}

/// Cross-entropy. Targets have [`super::TOKEN_DTYPE`]. Rows of logits may be padded to more elements than
/// there are tokens: padding is not read, and its gradient is 0.
pub trait LossOps {
    /// Adds the cross-entropies of the rows of `logits` to the scalar `loss`; the first `vocab` elements of a
    /// row are logits. With `grad_scale`, `logits` are replaced by their gradient times the scale.
    fn cross_entropy(&self, args: CrossEntropyArgs<'_>);

    /// Partial cross-entropy of each row over the logits of `vocab`, some tokens. `partials` receives three
    /// elements per row, as in [`CrossEntropyPartial`].
    fn cross_entropy_partials(&self, args: CrossEntropyPartialsArgs<'_>);

    /// Merges several sets of partials, each of all rows, into `merged`. Adds the cross-entropies to the
    /// scalar `loss`, for callers whose partials include all columns.
    fn merge_cross_entropy_partials(
        &self,
        partials: View<'_>,
        merged: ViewMut<'_>,
        loss: Option<ViewMut<'_>>,
    );

    /// Replaces `logits` of `vocab`, some tokens, by their gradient times `grad_scale`, given the merged
    /// partials of all columns.
    fn cross_entropy_backward(&self, args: CrossEntropyBackwardArgs<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(logits: &[f64], target: Option<usize>) -> CrossEntropyPartial {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum_exp = logits.iter().map(|x| (x - max).exp()).sum();
        CrossEntropyPartial { max, sum_exp, target_logit: target.map_or(0.0, |at| logits[at]) }
    }

    #[test]
    fn merged_partials_equal_the_cross_entropy_of_all_columns() {
        // Far apart, so that exponentials relative to another partial's maximum overflow.
        let logits = [-3.0, 900.0, 2.5, 899.0, -900.0, 0.0];
        for target in 0..logits.len() {
            let expected = partial(&logits, Some(target)).loss();
            for middle in 1..logits.len() {
                let (left, right) = logits.split_at(middle);
                let local = |range: std::ops::Range<usize>| {
                    range.contains(&target).then(|| target - range.start)
                };
                let right_target = local(middle..logits.len());
                let parts = [partial(left, local(0..middle)), partial(right, right_target)];
                let merged = merge_partials(parts.into_iter());
                assert!((merged.loss() - expected).abs() < 1e-12, "{target} {middle}");
                assert_eq!(merged.max, 900.0);
            }
        }
    }

    #[test]
    fn nan_propagates() {
        let good = partial(&[1.0, 2.0], Some(0));
        let bad = CrossEntropyPartial { sum_exp: f64::NAN, ..partial(&[1.0], None) };
        assert!(merge_partials([good, bad].into_iter()).loss().is_nan());
    }
}
