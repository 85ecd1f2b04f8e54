//! Linear layers.

use crate::tensor::{View, ViewMut};

/// Shape of a linear layer: `x` is `rows` by `inputs`, `y` is `rows` by `outputs`, the weight is
/// `outputs` by `inputs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Tokens.
    pub rows: usize,
    /// Input features.
    pub inputs: usize,
    /// Output features.
    pub outputs: usize,
}

/// GEMMs of linear layers.
pub trait LinearOps {
    /// `y = x weightᵀ + bias`.
    fn linear(
        &self,
        shape: LinearShape,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    );

    /// `dx = dy weight`, or `dx += dy weight` if `accumulate`.
    fn linear_backward_input(
        &self,
        shape: LinearShape,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        accumulate: bool,
    );

    /// `dweight += dyᵀ x`, `dbias +=` column sums of `dy`.
    fn linear_backward_weight(
        &self,
        shape: LinearShape,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    );
}
