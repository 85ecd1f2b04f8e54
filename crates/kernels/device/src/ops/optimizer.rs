//! Optimizer updates.

use crate::optimizer::{AdamW, Sgd};
use crate::tensor::{View, ViewMut};

/// Optimizer updates over flat buffers of equal length.
pub trait OptimizerOps {
    /// One AdamW step; `moments` are the first and the second moment.
    fn adamw(&self, config: &AdamW, grad: View<'_>, moments: [ViewMut<'_>; 2], param: ViewMut<'_>);

    /// One step of SGD with momentum.
    fn sgd(&self, config: &Sgd, grad: View<'_>, momentum: ViewMut<'_>, param: ViewMut<'_>);
}
