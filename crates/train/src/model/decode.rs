//! Token by token: keys and values of the tokens so far are kept, so that a new one costs one row.

use super::attention::AttentionHalf;
use super::{Layer, Lent, Model, Params, Run, Saved};
use crate::state::StepError;
use regatta_device::device::{Device, Turn};
use regatta_device::memory::{Tensor, View};

/// Keys and values of the tokens so far, of one layer.
#[derive(Debug)]
pub struct Cache {
    keys: Tensor,
    values: Tensor,
}

impl Cache {
    /// Room for as many tokens as the model has context, for each of its layers.
    pub fn of(model: &Model, device: &dyn Device) -> Vec<Self> {
        let shape = &model.shape;
        let room = shape.context * shape.kv_heads * shape.head_width();
        let tensor = || device.activation(room);
        (0..shape.layers).map(|_| Self { keys: tensor(), values: tensor() }).collect()
    }
}

impl Layer {
    /// The stream of one token behind the layer, whose position is `position`.
    pub fn one(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: Lent,
        cache: &mut Cache,
        position: usize,
    ) -> Result<Lent, StepError> {
        let mid = match &self.attention {
            Some(half) => half.one(run, &mut *params, &x, cache, position)?,
            None => x,
        };
        Ok(self.feed_forward.forward(run, params, &mid)?.1)
    }

    /// Keeps the keys and values of the first sequence of a forward pass.
    pub fn keep(&self, run: &Run<'_>, saved: &Saved, cache: &mut Cache) {
        if let (Some(half), Some(qkv)) = (&self.attention, saved.qkv()) {
            let row = half.sizes(run).qkv_width();
            for position in 0..run.sequence {
                let here = qkv.view().part(position * row..(position + 1) * row);
                half.remember(run, here, cache, position);
            }
        }
    }
}

impl AttentionHalf {
    fn one(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
        cache: &mut Cache,
        position: usize,
    ) -> Result<Lent, StepError> {
        let (device, sizes) = (run.device, self.sizes(run));
        let mut normed = run.activation(self.width);
        let mut statistics = run.real(2);
        self.norm.forward(run, params.own(), x.view(), normed.view_mut(), statistics.view_mut());
        let mut qkv = run.activation(sizes.qkv_width());
        self.qkv.forward(run, params, &normed, &mut qkv)?;
        if let Some(base) = self.rope {
            device.rope(sizes, base, &[position as u32], Turn::There, qkv.view_mut());
        }
        self.remember(run, qkv.view(), cache, position);
        let so_far = 0..(position + 1) * sizes.kv_heads * sizes.head_width;
        let (keys, values) = (cache.keys.view().part(so_far.clone()), cache.values.view());
        let mut heads = run.activation(sizes.width());
        let queries = qkv.view().part(0..sizes.width());
        device.attend(sizes, queries, keys, values.part(so_far), heads.view_mut());
        let mut out = run.activation(self.width);
        self.proj.forward(run, params, &heads, &mut out)?;
        let mut mid = run.real(self.width);
        device.sum(x.view(), out.view(), mid.view_mut());
        Ok(mid)
    }

    /// Copies the keys and values of a token.
    fn remember(&self, run: &Run<'_>, qkv: View<'_>, cache: &mut Cache, position: usize) {
        let sizes = self.sizes(run);
        let (queries, each) = (sizes.width(), sizes.kv_heads * sizes.head_width);
        let there = position * each..(position + 1) * each;
        let (mut keys, mut values) = (cache.keys.view_mut(), cache.values.view_mut());
        let part = |start: usize| qkv.part(start..start + each);
        run.device.copy(part(queries), keys.part(there.clone()));
        run.device.copy(part(queries + each), values.part(there));
    }
}
