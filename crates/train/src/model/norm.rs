//! LayerNorm and RMSNorm.

use std::sync::Arc;

use super::fp8::Fp8Tensor;
use super::linear::Linear;
use super::weight_bias::WeightBias;
use super::{ParamsAndGrads, PassCtx, Residual, StreamGrad};
use crate::buffer_pool::PooledTensor;
use regatta_device::ops::{Norm, NormArgs, NormBackwardArgs, NormInputGrad};
use regatta_device::tensor::{Tensor, View};
use regatta_predict::shape::{Family, ModelShape, Module, ParamBlock};

/// A norm layer.
#[derive(Debug, Clone)]
pub struct NormLayer {
    params: WeightBias,
    norm: Norm,
    hidden_size: usize,
}

impl NormLayer {
    pub fn new(shape: &ModelShape, block: &ParamBlock, module: Module) -> Self {
        let eps = shape.norm_eps;
        let norm = match shape.family {
            Family::Llama => Norm::Rms { eps },
            Family::Gpt2 | Family::Mlp => Norm::Layer { eps },
        };
        Self { params: WeightBias::new(block, module), norm, hidden_size: shape.hidden_size }
    }

    /// The residual stream with everything added, its normalized rows, and their statistics. The rows are
    /// also in fp8 if the layer that reads them wants that.
    pub fn forward(&self, ctx: &PassCtx, params: View, input: Residual, reader: &Linear) -> Normed {
        let wants_fp8 = !ctx.tensor.sequence_parallel && reader.uses_fp8(ctx);
        self.forward_with(ctx, params, input, wants_fp8)
    }

    /// As [`NormLayer::forward`]. Rows in fp8 are written only together with an addition.
    pub fn forward_with(
        &self,
        ctx: &PassCtx,
        params: View,
        input: Residual,
        wants_fp8: bool,
    ) -> Normed {
        let Residual { x, delta } = input;
        let mut normed = ctx.activation(x.len());
        let mut stats = ctx.full_precision(2 * x.len() / self.hidden_size);
        let (weight, bias) = self.params.of(params);
        let (y, mean_rstd) = (normed.view_mut(), stats.view_mut());
        let args = NormArgs { norm: self.norm, x: x.view(), weight, bias, y, mean_rstd };
        let mut normed_fp8 = None;
        let x = match delta {
            None => {
                ctx.device.norm(args);
                x
            }
            Some(delta) => {
                let mut sum = ctx.residual(x.len());
                let (delta, to) = (delta.view(), sum.view_mut());
                if wants_fp8 {
                    let fp8 = Fp8Tensor::new(ctx, x.len() / self.hidden_size, self.hidden_size);
                    ctx.device.add_norm_fp8(args, delta, to, normed_fp8.insert(fp8).rows_mut());
                } else {
                    ctx.device.add_norm(args, delta, to);
                }
                Arc::new(sum)
            }
        };
        Normed { x, normed, normed_fp8, stats }
    }

    /// Adds the input gradient to `grad`, and the gradients of weight and bias to theirs.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        grad: &mut StreamGrad,
    ) {
        let (params, mut grads) = params.params_and_grads();
        let (weight, _) = self.params.of(params);
        let (dweight, dbias) = self.params.of_mut(&mut grads);
        let mut operand = grad.take_operand(ctx);
        let mut sums = ctx.column_sums(self.hidden_size);
        let input_grad = NormInputGrad {
            dx: grad.dx.view_mut(),
            copy: operand.as_mut().map(|copy| copy.view_mut()),
            column_sums: sums.as_mut().map(|sums| sums.view_mut()),
        };
        let args = NormBackwardArgs {
            norm: self.norm,
            x: x.view(),
            weight,
            mean_rstd: stats.view(),
            dy: dy.view(),
            input_grad,
            dweight,
            dbias,
        };
        let mut fp8 = ctx.stream_grad_fp8(x.len(), self.hidden_size);
        match &mut fp8 {
            Some(fp8) => ctx.device.norm_backward_fp8(args, fp8.rows_mut()),
            None => ctx.device.norm_backward(args),
        }
        (grad.operand, grad.column_sums, grad.fp8) = (operand, sums, fp8);
    }
}

/// The output of a norm.
pub struct Normed {
    /// The input: the residual stream.
    pub x: Arc<PooledTensor>,
    /// The normalized rows.
    pub normed: PooledTensor,
    /// These rows in fp8.
    pub normed_fp8: Option<Fp8Tensor>,
    /// Mean and rstd of each row, for the backward pass.
    pub stats: PooledTensor,
}
