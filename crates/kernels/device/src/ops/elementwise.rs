//! Elementwise operations and reductions.

use crate::random::DropoutMask;
use crate::tensor::{View, ViewMut};

/// Elementwise operations and reductions.
pub trait ElementwiseOps {
    /// `z = x + y`.
    fn add(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>);

    /// `y += x`.
    fn add_assign(&self, x: View<'_>, y: ViewMut<'_>);

    /// Applies dropout in place. The backward pass applies the same mask to the gradient.
    fn dropout(&self, mask: DropoutMask, x: ViewMut<'_>);

    /// `x *= by`.
    fn scale(&self, by: f64, x: ViewMut<'_>);

    /// Adds the sum of squares to a scalar.
    fn sum_of_squares(&self, x: View<'_>, sum: ViewMut<'_>);
}
