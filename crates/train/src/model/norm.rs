//! LayerNorm and RMSNorm.

use super::weight_bias::WeightBias;
use super::{ParamsAndGrads, PassCtx};
use crate::buffer_pool::PooledTensor;
use regatta_device::ops::{Norm, NormGrads, NormSaved};
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

    /// The normalized rows, and mean and rstd of each row for the backward pass.
    pub fn forward(&self, ctx: &PassCtx, params: View, x: &Tensor) -> (PooledTensor, PooledTensor) {
        let mut normed = ctx.activation(x.len());
        let mut stats = ctx.full_precision(2 * x.len() / self.hidden_size);
        let (weight, bias) = self.params.of(params);
        ctx.device.norm(self.norm, x.view(), weight, bias, normed.view_mut(), stats.view_mut());
        (normed, stats)
    }

    /// Adds the input gradient to `dx`, and the gradients of weight and bias to theirs.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
    ) {
        let (params, mut grads) = params.params_and_grads();
        let (weight, _) = self.params.of(params);
        let (dweight, dbias) = self.params.of_mut(&mut grads);
        let saved = NormSaved { x: x.view(), weight, mean_rstd: stats.view() };
        let grads = NormGrads { weight: dweight, bias: dbias };
        ctx.device.norm_backward(self.norm, saved, dy.view(), dx.view_mut(), grads);
    }
}
