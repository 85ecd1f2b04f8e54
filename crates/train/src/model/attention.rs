//! Attention: the first half of a transformer layer.

use super::linear::{BiasGrad, Linear};
use super::norm::{NormLayer, Normed};
use super::pass_ctx::DropoutSite;
use super::{MaybeOwned, Params, ParamsAndGrads, PassCtx, Residual, StreamGrad};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionDropout, AttentionSaved, AttentionShape,
    RopeArgs, RopeDirection,
};
use regatta_device::random::DropoutMask;
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_predict::shape::{Family, Matrices, ModelShape, Module};

/// Causal self-attention with its norm and projections.
#[derive(Debug, Clone)]
pub struct Attention {
    pub(super) norm: NormLayer,
    pub(super) qkv: Linear,
    pub(super) proj: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden_size: usize,
    /// Base frequency of rotary position embeddings, if the model has them.
    pub(super) rope_theta: Option<f64>,
    block: usize,
}

/// Activations for the backward pass.
#[derive(Debug)]
pub struct AttentionActivations {
    normed: PooledTensor,
    norm_stats: PooledTensor,
    /// Queries, keys and values, after RoPE.
    pub(super) qkv: PooledTensor,
    heads: PooledTensor,
    lse: PooledTensor,
}

impl Attention {
    pub fn new(shape: &ModelShape, block: usize, of: &Matrices<'_>) -> Self {
        let tp = of.block.shard.ranks;
        Self {
            norm: NormLayer::new(shape, of.block, Module::AttentionNorm),
            qkv: Linear::column_parallel(of, Module::Qkv),
            proj: Linear::row_parallel(of, Module::AttentionOutput),
            heads: shape.num_heads / tp,
            kv_heads: shape.num_kv_heads / tp,
            head_dim: shape.head_dim(),
            hidden_size: shape.hidden_size,
            rope_theta: (shape.family == Family::Llama).then_some(shape.rope_theta),
            block,
        }
    }

    /// The problem size of the attention kernel.
    pub fn size(&self, ctx: &PassCtx) -> AttentionShape {
        AttentionShape {
            batch: ctx.batch,
            seq_len: ctx.seq_len,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// `x + dropout(proj(attention(qkv(norm(x)))))`, not yet added.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        input: Residual,
    ) -> Result<(AttentionActivations, Residual)> {
        let Normed { x, normed, normed_fp8, stats: norm_stats } =
            self.norm.forward(ctx, params.block(), input, &self.qkv);
        let normed = ctx.tensor.all_gather_rows(ctx, normed)?;
        let mut qkv = self.qkv.forward(ctx, params, &normed, normed_fp8)?;
        self.apply_rope(ctx, RopeDirection::Forward, qkv.view_mut());
        let (heads, lse) = self.attention(ctx, qkv.view())?;
        let mut out = self.proj.forward(ctx, params, &heads, None)?;
        let site = DropoutSite::attention_output(self.block);
        ctx.apply_dropout(site, self.hidden_size, out.view_mut());
        Ok((
            AttentionActivations { normed, norm_stats, qkv, heads, lse },
            Residual { x, delta: Some(out) },
        ))
    }

    /// Turns `grad` from the gradient of the output into that of `x`.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: &Tensor,
        saved: AttentionActivations,
        grad: &mut StreamGrad,
    ) -> Result<()> {
        let site = DropoutSite::attention_output(self.block);
        let (sums, fp8) = (grad.column_sums.take(), grad.fp8.take());
        let dropped = ctx.dropout_grad(site, self.hidden_size, grad);
        let dout = ctx.tensor.all_gather_grad_rows(ctx, dropped)?;
        let dheads = self.proj.backward_input(ctx, params, &dout, fp8)?;
        let mut dqkv = self.attention_backward(ctx, &saved, dheads.view())?;
        self.proj.backward_weight(ctx, params, saved.heads, dout, BiasGrad::of(&sums))?;
        self.apply_rope(ctx, RopeDirection::Inverse, dqkv.view_mut());
        let (bias_grad, dqkv_fp8) = self.qkv.quantize_output_grad(ctx, params, &dqkv);
        let dnormed = self.qkv.backward_input(ctx, params, &dqkv, dqkv_fp8)?;
        let dqkv = MaybeOwned::Owned(dqkv);
        self.qkv.backward_weight(ctx, params, saved.normed, dqkv, bias_grad)?;
        let dnormed = ctx.tensor.reduce_scatter_rows(ctx, dnormed)?;
        self.norm.backward(ctx, params, x, &saved.norm_stats, &dnormed, grad);
        Ok(())
    }

    /// Dropout of the attention weights, offset to this rank's first head.
    fn attention_dropout(&self, ctx: &PassCtx) -> Option<AttentionDropout> {
        let shard = ctx.tensor.shard;
        let (heads, mask) = (self.heads * shard.ranks, self.weights_mask(ctx)?);
        let full = AttentionDropout::new(mask, heads, ctx.full_seq_len());
        Some(full.shard([0, self.heads * shard.rank, 0, 0]))
    }

    /// The mask of the attention weights of all heads.
    fn weights_mask(&self, ctx: &PassCtx) -> Option<DropoutMask> {
        let (heads, seq_len) = (self.heads * ctx.tensor.shard.ranks, ctx.full_seq_len());
        ctx.dropout_mask(DropoutSite::attention_weights(self.block), heads * seq_len * seq_len)
    }

    /// The dropout masks of a training pass.
    pub fn dropout_masks(&self, ctx: &PassCtx) -> [Option<DropoutMask>; 2] {
        let output = DropoutSite::attention_output(self.block);
        [self.weights_mask(ctx), ctx.residual_mask(output, self.hidden_size)]
    }

    fn apply_rope(&self, ctx: &PassCtx, direction: RopeDirection, qkv: ViewMut<'_>) {
        let Some(theta) = self.rope_theta else { return };
        let positions = ctx.positions();
        // With context parallelism there is a position for each row.
        let (batch, sequence) = (ctx.rows() / positions.len(), positions.len());
        let shape = AttentionShape { batch, seq_len: sequence, ..self.size(ctx) };
        let positions = positions.view();
        ctx.device.apply_rope(RopeArgs { shape, theta, positions, direction, qkv });
    }

    /// The outputs of the heads, and the softmax lse.
    fn attention(&self, ctx: &PassCtx, qkv: View<'_>) -> Result<(PooledTensor, PooledTensor)> {
        let (size, drop) = (self.size(ctx), self.attention_dropout(ctx));
        if ctx.context.is_enabled() {
            return Ok(ctx.context.attention(ctx, size, qkv, drop)?);
        }
        let mut heads = ctx.activation(ctx.rows() * size.out_dim());
        let mut lse = ctx.full_precision(size.heads * ctx.rows());
        let (shape, dropout, y) = (size, drop, heads.view_mut());
        ctx.device.attention(AttentionArgs { shape, qkv, dropout, y, lse: lse.view_mut() });
        Ok((heads, lse))
    }

    fn attention_backward(
        &self,
        ctx: &PassCtx,
        saved: &AttentionActivations,
        dheads: View<'_>,
    ) -> Result<PooledTensor> {
        let (size, drop) = (self.size(ctx), self.attention_dropout(ctx));
        let (qkv, y, lse) = (saved.qkv.view(), saved.heads.view(), saved.lse.view());
        let saved = AttentionSaved { qkv, y, lse };
        if ctx.context.is_enabled() {
            return Ok(ctx.context.attention_backward(ctx, size, saved, drop, dheads)?);
        }
        let mut dqkv = ctx.activation(ctx.rows() * size.qkv_dim());
        let (shape, dropout, dy) = (size, drop, dheads);
        let args = AttentionBackwardArgs { shape, saved, dropout, dy, dqkv: dqkv.view_mut() };
        ctx.device.attention_backward(args);
        Ok(dqkv)
    }
}
