//! Optimizer updates.

use std::ops::Range;

use crate::optimizer::{AdamW, Sgd, clip_coefficient};
use crate::tensor::{View, ViewMut};

/// What an optimizer step reads and updates: flat buffers of equal length.
#[derive(Debug)]
pub struct OptimizerState<'a> {
    /// `factor_words` of the optimizer in device memory, of [`super::TOKEN_DTYPE`]: in a capture, launches of
    /// the graph read what differs between steps there. `None` outside of captures.
    pub factors: Option<View<'a>>,
    /// Gradients.
    pub grad: View<'a>,
    /// Scalar by which gradients are multiplied first, for clipping.
    pub grad_scale: View<'a>,
    /// First moment, or momentum.
    pub moment1: ViewMut<'a>,
    /// Second moment; unused by SGD.
    pub moment2: ViewMut<'a>,
    /// Master parameters.
    pub param: ViewMut<'a>,
    /// Copy of the parameters in the weight dtype, if the device has one.
    pub weight: Option<ViewMut<'a>>,
    /// Disjoint, ascending ranges of elements with weight decay: matrices, not norms and biases.
    pub decayed: &'a [Range<usize>],
}

/// Optimizer updates over flat buffers.
pub trait OptimizerOps {
    /// Writes the factor by which gradient clipping scales gradients: `min(1, max_norm / (norm + 1e-6))`;
    /// 1 if `max_norm` is 0. The sum of squares counts every gradient `copies` times.
    fn clip_coefficient(
        &self,
        sum_of_squares: View<'_>,
        copies: f64,
        max_norm: f64,
        to: ViewMut<'_>,
    ) {
        let sum = sum_of_squares.as_slice::<f64>()[0] / copies;
        to.as_slice::<f64>()[0] = clip_coefficient(sum, max_norm);
    }

    /// One AdamW step.
    fn adamw(&self, config: &AdamW, state: OptimizerState<'_>);

    /// One step of SGD with momentum.
    fn sgd(&self, config: &Sgd, state: OptimizerState<'_>);
}
