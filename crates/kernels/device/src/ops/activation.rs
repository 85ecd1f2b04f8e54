//! Activation functions of the MLP.

use crate::tensor::{View, ViewMut};

/// GELU and SwiGLU.
pub trait ActivationOps {
    /// `y = gelu(x)`, tanh approximation. Overwrites `x` with the derivative, which needs the same
    /// exponential and is all that the backward pass needs.
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>);

    /// Multiplies `dy` by the derivative in place.
    fn gelu_backward(&self, derivative: View<'_>, dy: ViewMut<'_>);

    /// `y = silu(gate) * up`. A row of `x` has `dim` gate elements, then `dim` up elements.
    fn swiglu(&self, dim: usize, x: View<'_>, y: ViewMut<'_>);

    /// Writes the gradient of gate and up to `dx`.
    fn swiglu_backward(&self, dim: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>);
}
