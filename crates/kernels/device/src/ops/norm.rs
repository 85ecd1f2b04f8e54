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

/// Inputs of a norm's backward pass from the forward pass.
#[derive(Debug, Clone, Copy)]
pub struct NormSaved<'a> {
    /// Input.
    pub x: View<'a>,
    /// Weight.
    pub weight: View<'a>,
    /// Mean and rstd of each row.
    pub mean_rstd: View<'a>,
}

/// Parameter gradients of a norm.
#[derive(Debug)]
pub struct NormGrads<'a> {
    /// Of the weight.
    pub weight: ViewMut<'a>,
    /// Of the bias, if there is one.
    pub bias: Option<ViewMut<'a>>,
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
    fn norm(
        &self,
        norm: Norm,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
        mean_rstd: ViewMut<'_>,
    );

    /// `sum = x + delta`, then the norm of `sum`.
    #[allow(clippy::too_many_arguments, reason = "a fused kernel has the arguments of both")]
    fn add_norm(
        &self,
        norm: Norm,
        x: View<'_>,
        delta: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        mut sum: ViewMut<'_>,
        y: ViewMut<'_>,
        mean_rstd: ViewMut<'_>,
    ) {
        self.add(x, delta, sum.reborrow());
        self.norm(norm, sum.view(), weight, bias, y, mean_rstd);
    }

    /// Accumulates into the gradients of the input and of the parameters.
    fn norm_backward(
        &self,
        norm: Norm,
        saved: NormSaved<'_>,
        dy: View<'_>,
        input_grad: NormInputGrad<'_>,
        grads: NormGrads<'_>,
    );
}
