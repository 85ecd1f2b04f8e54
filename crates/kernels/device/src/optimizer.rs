//! Hyperparameters of one optimizer step. No I/O.

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
    /// Weight decay; 0 for norms and biases.
    pub weight_decay: f64,
    /// Number of this step, from 1, for bias correction.
    pub step: u64,
    /// Factor applied to gradients first, for clipping.
    pub grad_scale: f64,
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
}

/// SGD with momentum: `m = momentum * m + g + weight_decay * p`, `p -= lr * m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Factor applied to gradients first, for clipping.
    pub grad_scale: f64,
}
