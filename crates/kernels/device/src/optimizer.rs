//! Hyperparameters of one optimizer step. No I/O.

use std::ops::Range;

/// AdamW with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Weight decay, of the elements that have it.
    pub weight_decay: f64,
    /// Number of this step, from 1, for bias correction.
    pub step: u64,
}

/// Per-step factors of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWFactors {
    /// Learning rate with the bias correction of the first moment.
    pub step_size: f64,
    /// Reciprocal square root of the bias correction of the second moment.
    pub v_correction: f64,
    /// Factor of decoupled weight decay.
    pub decay: f64,
}

impl AdamW {
    /// The factors of a step: `p = p * decay - step_size * m / (sqrt(v) * v_correction + eps)`.
    pub fn factors(&self) -> AdamWFactors {
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        AdamWFactors {
            step_size: self.lr / correction(self.beta1),
            v_correction: 1.0 / correction(self.beta2).sqrt(),
            decay: 1.0 - self.lr * self.weight_decay,
        }
    }

    /// The factors in f32, as device memory has them for graphs: see
    /// [`crate::ops::OptimizerState::factors`].
    pub fn factor_words(&self) -> [u32; 3] {
        let AdamWFactors { step_size, v_correction, decay } = self.factors();
        [step_size, v_correction, decay].map(|factor| (factor as f32).to_bits())
    }
}

/// SGD with momentum: `m = momentum * m + g + weight_decay * p`, `p -= lr * m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// Weight decay, added to the gradient of the elements that have it.
    pub weight_decay: f64,
}

impl Sgd {
    /// The learning rate in f32, as [`AdamW::factor_words`].
    pub fn factor_words(&self) -> [u32; 1] {
        [(self.lr as f32).to_bits()]
    }
}

/// Splits `0..len` at the bounds of ascending ranges; each part is inside one of them or outside of all.
pub fn split_by_decay(
    len: usize,
    decayed: &[Range<usize>],
) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut bounds = vec![0];
    bounds.extend(decayed.iter().flat_map(|range| [range.start, range.end]));
    bounds.push(len);
    let parts = (0..bounds.len() - 1).map(move |i| (bounds[i]..bounds[i + 1], i % 2 == 1));
    parts.filter(|(range, _)| !range.is_empty())
}

/// The clip coefficient of gradients with this sum of squares.
pub fn clip_coefficient(sum_of_squares: f64, max_norm: f64) -> f64 {
    let norm = sum_of_squares.sqrt();
    if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_elements_and_know_their_decay() {
        let parts = |decayed: &[Range<usize>]| split_by_decay(10, decayed).collect::<Vec<_>>();
        assert_eq!(parts(&[]), [(0..10, false)]);
        assert_eq!(parts(&[0..4, 4..6]), [(0..4, true), (4..6, true), (6..10, false)]);
        let expected = [(0..2, false), (2..3, true), (3..5, false), (5..10, true)];
        assert_eq!(parts(&[2..3, 5..10]), expected);
    }

    #[test]
    fn only_large_gradients_are_clipped() {
        assert_eq!(clip_coefficient(0.25, 1.0), 1.0);
        assert!((clip_coefficient(16.0, 1.0) - 0.25).abs() < 1e-6);
        assert_eq!(clip_coefficient(16.0, 0.0), 1.0);
    }
}
