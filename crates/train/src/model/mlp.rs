//! The MLP (feed-forward network): the second half of a transformer layer.

use super::linear::{BiasGrad, Linear};
use super::norm::{NormLayer, Normed};
use super::pass_ctx::DropoutSite;
use super::{MaybeOwned, Params, ParamsAndGrads, PassCtx, Residual, StreamGrad};
use std::sync::Arc;

use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::random::DropoutMask;
use regatta_predict::shape::{Matrices, ModelShape, Module};

/// An MLP with its norm: GELU, or SwiGLU if it is gated.
#[derive(Debug, Clone)]
pub struct Mlp {
    norm: NormLayer,
    up: Linear,
    down: Linear,
    hidden_size: usize,
    intermediate_size: usize,
    up_size: usize,
    is_gated: bool,
    block: usize,
}

/// Activations for the backward pass.
#[derive(Debug)]
pub struct MlpActivations {
    normed: PooledTensor,
    norm_stats: PooledTensor,
    /// The residual stream before the MLP.
    pub(super) mid: Arc<PooledTensor>,
    /// Gate and up projection, or what the device saved of GELU.
    up: PooledTensor,
    activated: PooledTensor,
}

impl Mlp {
    pub fn new(shape: &ModelShape, block: usize, of: &Matrices<'_>) -> Self {
        let tp = of.block.shard.ranks;
        Self {
            norm: NormLayer::new(shape, of.block, Module::MlpNorm),
            up: Linear::column_parallel(of, Module::MlpUp),
            down: Linear::row_parallel(of, Module::MlpDown),
            hidden_size: shape.hidden_size,
            intermediate_size: shape.intermediate_size / tp,
            up_size: shape.up_dim() / tp,
            is_gated: shape.is_gated(),
            block,
        }
    }

    /// The dropout mask of a training pass.
    pub fn dropout_mask(&self, ctx: &PassCtx) -> Option<DropoutMask> {
        ctx.residual_mask(DropoutSite::mlp_output(self.block), self.hidden_size)
    }

    /// `mid + dropout(down(activation(up(norm(mid)))))`, not yet added.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        input: Residual,
    ) -> Result<(MlpActivations, Residual)> {
        let Normed { x: mid, normed, normed_fp8, stats: norm_stats } =
            self.norm.forward(ctx, params.block(), input, &self.up);
        let normed = ctx.tensor.all_gather_rows(ctx, normed)?;
        let (up, activated, activated_fp8) = match self.is_gated {
            false => {
                let output = self.up.forward_gelu(ctx, params, &normed, normed_fp8)?;
                (output.saved, output.y, output.y_fp8)
            }
            true => {
                let up = self.up.forward(ctx, params, &normed, normed_fp8)?;
                let mut activated = ctx.activation(ctx.rows() * self.intermediate_size);
                ctx.device.swiglu(self.intermediate_size, up.view(), activated.view_mut());
                (up, activated, None)
            }
        };
        let mut down = self.down.forward(ctx, params, &activated, activated_fp8)?;
        let site = DropoutSite::mlp_output(self.block);
        ctx.apply_dropout(site, self.hidden_size, down.view_mut());
        let out = Residual { x: mid.clone(), delta: Some(down) };
        Ok((MlpActivations { normed, norm_stats, mid, up, activated }, out))
    }

    /// Turns `grad` from the gradient of the output into that of `mid`.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        saved: MlpActivations,
        grad: &mut StreamGrad,
    ) -> Result<()> {
        let site = DropoutSite::mlp_output(self.block);
        let (sums, fp8) = (grad.column_sums.take(), grad.fp8.take());
        let dropped = ctx.dropout_grad(site, self.hidden_size, grad);
        let dout = ctx.tensor.all_gather_grad_rows(ctx, dropped)?;
        let mut dactivated = self.down.backward_input(ctx, params, &dout, fp8)?;
        self.down.backward_weight(ctx, params, saved.activated, dout, BiasGrad::of(&sums))?;
        let (mut bias_grad, mut dup_fp8) = (BiasGrad::WithWeight, None);
        let dup = if self.is_gated {
            let mut dup = ctx.activation(ctx.rows() * self.up_size);
            let (up, dy) = (saved.up.view(), dactivated.view());
            ctx.device.swiglu_backward(self.intermediate_size, up, dy, dup.view_mut());
            dup
        } else {
            (bias_grad, dup_fp8) = self.up.gelu_backward(ctx, params, &saved.up, &mut dactivated);
            dactivated
        };
        let dnormed = self.up.backward_input(ctx, params, &dup, dup_fp8)?;
        let dup = MaybeOwned::Owned(dup);
        self.up.backward_weight(ctx, params, saved.normed, dup, bias_grad)?;
        let dnormed = ctx.tensor.reduce_scatter_rows(ctx, dnormed)?;
        self.norm.backward(ctx, params, &saved.mid, &saved.norm_stats, &dnormed, grad);
        Ok(())
    }
}
