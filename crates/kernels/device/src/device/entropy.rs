//! The loss of rows whose columns are shared among ranks.

/// What one rank knows of a row, from its columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntropyPart {
    /// The largest logit.
    pub most: f64,
    /// The sum of the exponentials of all logits less the largest.
    pub sum: f64,
    /// The target's logit, or 0 if it is elsewhere.
    pub wanted: f64,
}

impl EntropyPart {
    /// The cross entropy, if this is of all columns.
    pub fn loss(&self) -> f64 {
        self.most - self.wanted + self.sum.ln()
    }
}

impl From<[f64; 3]> for EntropyPart {
    fn from([most, sum, wanted]: [f64; 3]) -> Self {
        Self { most, sum, wanted }
    }
}

/// Of the columns of all parts. The target is in one of them.
pub fn merge_entropies(parts: impl Iterator<Item = EntropyPart> + Clone) -> EntropyPart {
    let most = parts.clone().map(|part| part.most).fold(f64::NEG_INFINITY, f64::max);
    // A sum that is not a number stays none: the largest may have passed it over.
    let sum = parts.clone().map(|part| part.sum * (part.most - most).exp()).sum();
    EntropyPart { most, sum, wanted: parts.map(|part| part.wanted).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logits: &[f64], wanted: Option<usize>) -> EntropyPart {
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = logits.iter().map(|x| (x - most).exp()).sum();
        EntropyPart { most, sum, wanted: wanted.map_or(0.0, |at| logits[at]) }
    }

    #[test]
    fn parts_of_any_size_make_the_whole() {
        // Far apart: none of them may be taken from another's largest without care.
        let logits = [-3.0, 900.0, 2.5, 899.0, -900.0, 0.0];
        for target in 0..logits.len() {
            let expected = of(&logits, Some(target)).loss();
            for cut in 1..logits.len() {
                let (left, right) = logits.split_at(cut);
                let wanted = |range: std::ops::Range<usize>| {
                    range.contains(&target).then(|| target - range.start)
                };
                let parts = [of(left, wanted(0..cut)), of(right, wanted(cut..logits.len()))];
                let whole = merge_entropies(parts.into_iter());
                assert!((whole.loss() - expected).abs() < 1e-12, "{target} {cut}");
                assert_eq!(whole.most, 900.0);
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_not_hidden() {
        let good = of(&[1.0, 2.0], Some(0));
        let bad = EntropyPart { sum: f64::NAN, ..of(&[1.0], None) };
        assert!(merge_entropies([good, bad].into_iter()).loss().is_nan());
    }
}
