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

impl LinearShape {
    /// # Panics
    /// If one of these lengths is not that of the tensor, or of its gradient.
    pub fn check_lengths(self, x: usize, weight: usize, y: usize) {
        let Self { rows, inputs, outputs } = self;
        assert_eq!(x, rows * inputs, "the input does not have the layer's shape");
        assert_eq!(weight, outputs * inputs, "the weight does not have the layer's shape");
        assert_eq!(y, rows * outputs, "the output does not have the layer's shape");
    }
}

/// Arguments of [`LinearOps::linear`]; other operations have operands of other types.
#[derive(Debug)]
pub struct LinearArgs<'a, Operand = View<'a>> {
    /// Shape.
    pub shape: LinearShape,
    /// Input.
    pub x: Operand,
    /// Weight.
    pub weight: Operand,
    /// Bias, if there is one.
    pub bias: Option<View<'a>>,
    /// Output.
    pub y: ViewMut<'a>,
}

/// Arguments of [`LinearOps::linear_backward_input`].
#[derive(Debug)]
pub struct LinearBackwardInputArgs<'a> {
    /// Shape.
    pub shape: LinearShape,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Weight.
    pub weight: View<'a>,
    /// Gradient of the input.
    pub dx: ViewMut<'a>,
    /// Whether the gradient is added to `dx`.
    pub accumulate: bool,
}

/// Arguments of [`LinearOps::linear_backward_weight`].
#[derive(Debug)]
pub struct LinearBackwardWeightArgs<'a> {
    /// Shape.
    pub shape: LinearShape,
    /// Input.
    pub x: View<'a>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of the weight, to which it is added.
    pub dweight: ViewMut<'a>,
    /// Gradient of the bias, if there is one.
    pub dbias: Option<ViewMut<'a>>,
}

/// GEMMs of linear layers.
pub trait LinearOps {
    /// `y = x weightᵀ + bias`.
    fn linear(&self, args: LinearArgs<'_>);

    /// `dx = dy weight`, or `dx += dy weight` if `accumulate`.
    fn linear_backward_input(&self, args: LinearBackwardInputArgs<'_>);

    /// `dweight += dyᵀ x`, `dbias +=` column sums of `dy`.
    fn linear_backward_weight(&self, args: LinearBackwardWeightArgs<'_>);
}
