//! LayerNorm and RMSNorm.

use super::ElementwiseOps;
use crate::tensor::{View, ViewMut};

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the variants explain the field")]
pub enum Norm {
    /// LayerNorm; `eps` is added to the variance.
    Layer { eps: f64 },
    /// RMSNorm; `eps` is added to the mean square.
    Rms { eps: f64 },
}

/// Arguments of [`NormOps::norm`].
#[derive(Debug)]
pub struct NormArgs<'a> {
    /// Kind.
    pub norm: Norm,
    /// Input.
    pub x: View<'a>,
    /// Weight.
    pub weight: View<'a>,
    /// Bias, if there is one.
    pub bias: Option<View<'a>>,
    /// Output.
    pub y: ViewMut<'a>,
    /// Mean and rstd of each row.
    pub mean_rstd: ViewMut<'a>,
}

/// Arguments of [`NormOps::norm_backward`].
#[derive(Debug)]
pub struct NormBackwardArgs<'a> {
    /// Kind.
    pub norm: Norm,
    /// Input.
    pub x: View<'a>,
    /// Weight.
    pub weight: View<'a>,
    /// Mean and rstd of each row.
    pub mean_rstd: View<'a>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of the input.
    pub input_grad: NormInputGrad<'a>,
    /// Gradient of the weight, to which it is added.
    pub dweight: ViewMut<'a>,
    /// Gradient of the bias, if there is one.
    pub dbias: Option<ViewMut<'a>>,
}

/// Gradient of the input of a norm, which is the residual stream.
#[derive(Debug)]
pub struct NormInputGrad<'a> {
    /// The gradient so far, to which that through the norm is added.
    pub dx: ViewMut<'a>,
    /// Receives the updated gradient in its own dtype, for GEMMs.
    pub copy: Option<ViewMut<'a>>,
    /// Receives the column sums of the updated gradient: the gradient of a bias that was added to the
    /// residual stream before the norm.
    pub column_sums: Option<ViewMut<'a>>,
}

impl<'a> NormInputGrad<'a> {
    /// Without copy and column sums.
    pub fn new(dx: ViewMut<'a>) -> Self {
        Self { dx, copy: None, column_sums: None }
    }
}

/// Norms.
pub trait NormOps: ElementwiseOps {
    /// `y = norm(x) * weight + bias` of rows as long as `weight`. `mean_rstd` receives two elements per
    /// row: mean (0 for RMSNorm) and reciprocal standard deviation.
    fn norm(&self, args: NormArgs<'_>);

    /// `sum = x + delta`, then the norm of `sum`.
    fn add_norm(&self, args: NormArgs<'_>, delta: View<'_>, mut sum: ViewMut<'_>) {
        self.add(args.x, delta, sum.reborrow());
        self.norm(NormArgs { x: sum.view(), ..args });
    }

    /// Accumulates into the gradients of the input and of the parameters.
    fn norm_backward(&self, args: NormBackwardArgs<'_>);
}
