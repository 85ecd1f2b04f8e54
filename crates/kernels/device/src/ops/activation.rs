//! Activation functions of the MLP.

use super::{LinearArgs, LinearOps};
use crate::tensor::{View, ViewMut};

/// GELU and SwiGLU.
pub trait ActivationOps: LinearOps {
    /// `y = gelu(x)`, tanh approximation. `x` becomes what the device saves for the backward pass: the
    /// input, or the derivative, which needs the same exponential.
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>);

    /// `y = gelu(x weightᵀ + bias)`. `saved` receives what [`ActivationOps::gelu`] leaves in its input.
    fn linear_gelu(&self, args: LinearArgs<'_>, mut saved: ViewMut<'_>) {
        self.linear(LinearArgs { y: saved.reborrow(), ..args });
        self.gelu(saved, args.y);
    }

    /// Multiplies `dy` by the derivative in place. `dbias`, if any, is the gradient of a bias that was
    /// added before the activation: the column sums of the result are added to it.
    fn gelu_backward(&self, saved: View<'_>, dy: ViewMut<'_>, dbias: Option<ViewMut<'_>>);

    /// `y = silu(gate) * up`. A row of `x` has `dim` gate elements, then `dim` up elements.
    fn swiglu(&self, dim: usize, x: View<'_>, y: ViewMut<'_>);

    /// Writes the gradient of gate and up to `dx`.
    fn swiglu_backward(&self, dim: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>);
}
