//! The MLP (feed-forward network): the second half of a transformer layer.

use super::linear::Linear;
use super::norm::NormLayer;
use super::pass_ctx::DropoutSite;
use super::{MaybeOwned, Params, ParamsAndGrads, PassCtx};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::tensor::Tensor;
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
    /// Gate and up projection, or the derivative of GELU.
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

    /// `out = mid + dropout(down(activation(up(norm(mid)))))`.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        mid: &Tensor,
    ) -> Result<(MlpActivations, PooledTensor)> {
        let device = ctx.device;
        let (normed, norm_stats) = self.norm.forward(ctx, params.block(), mid);
        let normed = ctx.tensor.all_gather_rows(ctx, normed)?;
        let mut up = self.up.forward(ctx, params, &normed)?;
        let mut activated = ctx.activation(ctx.rows() * self.intermediate_size);
        match self.is_gated {
            true => device.swiglu(self.intermediate_size, up.view(), activated.view_mut()),
            false => device.gelu(up.view_mut(), activated.view_mut()),
        }
        let mut down = self.down.forward(ctx, params, &activated)?;
        let site = DropoutSite::mlp_output(self.block);
        ctx.apply_dropout(site, self.hidden_size, down.view_mut());
        let mut out = ctx.full_precision(mid.len());
        device.add(mid.view(), down.view(), out.view_mut());
        Ok((MlpActivations { normed, norm_stats, up, activated }, out))
    }

    /// Turns `dx` from the gradient of `out` into that of `mid`.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        mid: &Tensor,
        saved: MlpActivations,
        dx: &mut Tensor,
    ) -> Result<()> {
        let device = ctx.device;
        let site = DropoutSite::mlp_output(self.block);
        let dropped = ctx.dropout_grad(site, self.hidden_size, dx);
        let dout = ctx.tensor.all_gather_grad_rows(ctx, dropped)?;
        let mut dactivated = self.down.backward_input(ctx, params, &dout)?;
        self.down.backward_weight(ctx, params, saved.activated, dout)?;
        let dup = if self.is_gated {
            let mut dup = ctx.activation(ctx.rows() * self.up_size);
            let (up, dy) = (saved.up.view(), dactivated.view());
            device.swiglu_backward(self.intermediate_size, up, dy, dup.view_mut());
            dup
        } else {
            device.gelu_backward(saved.up.view(), dactivated.view_mut());
            dactivated
        };
        let dnormed = self.up.backward_input(ctx, params, &dup)?;
        self.up.backward_weight(ctx, params, saved.normed, MaybeOwned::Owned(dup))?;
        let dnormed = ctx.tensor.reduce_scatter_rows(ctx, dnormed)?;
        self.norm.backward(ctx, params, mid, &saved.norm_stats, &dnormed, dx);
        Ok(())
    }
}
