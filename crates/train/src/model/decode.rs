//! Decoding with a KV cache: each new token costs one row.

use super::attention::Attention;
use super::norm::Normed;
use super::{Layer, LayerSaved, Model, Params, PassCtx, Residual};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::ops::{DecodeAttentionArgs, Device, RopeArgs, RopeDirection};
use regatta_device::tensor::{Tensor, View};

/// The KV cache of a layer: keys and values of the tokens so far.
#[derive(Debug)]
pub struct KvCache {
    keys: Tensor,
    values: Tensor,
}

impl KvCache {
    /// A cache per layer, each for a full sequence.
    pub fn for_model(model: &Model, device: &dyn Device) -> Vec<Self> {
        let shape = &model.shape;
        let elements = shape.seq_len * shape.num_kv_heads * shape.head_dim();
        let tensor = || device.zeros_activation(elements);
        (0..shape.num_layers).map(|_| Self { keys: tensor(), values: tensor() }).collect()
    }
}

impl Layer {
    /// The residual stream of one token after the layer; `position` is its position.
    pub fn decode(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: PooledTensor,
        cache: &mut KvCache,
        position: usize,
    ) -> Result<PooledTensor> {
        let mid = match &self.attention {
            Some(attention) => attention.decode(ctx, &mut *params, x, cache, position)?,
            None => x,
        };
        Ok(self.mlp.forward(ctx, params, Residual::new(mid))?.1.into_tensor(ctx))
    }

    /// Fills the cache with the keys and values of a forward pass over the prompt.
    pub fn prefill_cache(&self, ctx: &PassCtx, saved: &LayerSaved, cache: &mut KvCache) {
        if let (Some(attention), Some(qkv)) = (&self.attention, saved.qkv()) {
            let row_len = attention.size(ctx).qkv_dim();
            for position in 0..ctx.seq_len {
                let row = qkv.view().slice(position * row_len..(position + 1) * row_len);
                attention.cache_token(ctx, row, cache, position);
            }
        }
    }
}

impl Attention {
    fn decode(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: PooledTensor,
        cache: &mut KvCache,
        position: usize,
    ) -> Result<PooledTensor> {
        let (device, size) = (ctx.device, self.size(ctx));
        let input = Residual::new(x);
        let Normed { x, normed, .. } = self.norm.forward(ctx, params.block(), input, &self.qkv);
        let mut qkv = self.qkv.forward(ctx, params, &normed, None)?;
        if let Some(theta) = self.rope_theta {
            let (positions, direction) = (ctx.upload(&[position as u32]), RopeDirection::Forward);
            let (shape, positions, qkv) = (size, positions.view(), qkv.view_mut());
            device.apply_rope(RopeArgs { shape, theta, positions, direction, qkv });
        }
        self.cache_token(ctx, qkv.view(), cache, position);
        let cached = 0..(position + 1) * size.kv_heads * size.head_dim;
        let (keys, values) = (cache.keys.view().slice(cached.clone()), cache.values.view());
        let mut heads = ctx.activation(size.out_dim());
        let q = qkv.view().slice(0..size.out_dim());
        let (shape, values, y) = (size, values.slice(cached), heads.view_mut());
        device.decode_attention(DecodeAttentionArgs { shape, q, keys, values, y });
        let out = self.proj.forward(ctx, params, &heads, None)?;
        Ok(Residual { x, delta: Some(out) }.into_tensor(ctx))
    }

    /// Copies the keys and values of a token into the cache.
    fn cache_token(&self, ctx: &PassCtx, qkv: View<'_>, cache: &mut KvCache, position: usize) {
        let size = self.size(ctx);
        let (q_len, kv_len) = (size.out_dim(), size.kv_heads * size.head_dim);
        let row = position * kv_len..(position + 1) * kv_len;
        let (mut keys, mut values) = (cache.keys.view_mut(), cache.values.view_mut());
        ctx.device.copy(qkv.slice(q_len..q_len + kv_len), keys.slice(row.clone()));
        ctx.device.copy(qkv.slice(q_len + kv_len..q_len + 2 * kv_len), values.slice(row));
    }
}
