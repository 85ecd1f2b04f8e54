//! How parameters follow their gradients: the numbers of one step. No I/O.

/// AdamW: each parameter by its own pace, with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The learning rate of this step.
    pub rate: f64,
    /// How slowly the mean of gradients changes.
    pub beta1: f64,
    /// How slowly the mean of their squares changes.
    pub beta2: f64,
    /// Added to the root of the mean of squares.
    pub epsilon: f64,
    /// Share of a parameter that is lost a step, times the rate; 0 for those that do not decay.
    pub decay: f64,
    /// The number of this step, from 1: the means begin at 0 and are corrected for that.
    pub step: u64,
    /// What gradients are multiplied by before anything else, to clip them.
    pub scale: f64,
}

/// What AdamW does to one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWFactors {
    /// The rate, with the correction of the mean.
    pub pace: f64,
    /// One over the root of the correction of the squares.
    pub root: f64,
    /// What is left of the parameter.
    pub kept: f64,
}

impl AdamW {
    /// What is the same for all parameters of a step:
    /// `p = p * kept - pace * m / (sqrt(v) * root + epsilon)`.
    pub fn factors(&self) -> AdamWFactors {
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        AdamWFactors {
            pace: self.rate / correction(self.beta1),
            root: 1.0 / correction(self.beta2).sqrt(),
            kept: 1.0 - self.rate * self.decay,
        }
    }
}

/// Gradient descent with momentum: `m = momentum m + g + decay p`, `p -= rate m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The learning rate of this step.
    pub rate: f64,
    /// How much of the last step is repeated.
    pub momentum: f64,
    /// Share of a parameter that is added to its gradient.
    pub decay: f64,
    /// What gradients are multiplied by before anything else, to clip them.
    pub scale: f64,
}
