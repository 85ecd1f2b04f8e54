//! Decoding: attention of one new token to the KV cache.

use super::super::Cpu;
use super::super::memory::copy_kernel;
use super::super::slice::{DisjointMut, Slice};
use regatta_device::ops::AttentionShape;
use regatta_device::tensor::{View, ViewMut};

/// Cached tokens of all heads that are worth another thread.
const MIN_TOKENS_PER_THREAD: usize = 4096;

impl Cpu {
    pub(super) fn attend_to_cache(
        &self,
        shape: AttentionShape,
        q: View<'_>,
        keys: View<'_>,
        values: View<'_>,
        y: ViewMut<'_>,
    ) {
        let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
        let row_len = kv_heads * head_dim;
        let out_dim = shape.out_dim();
        assert_eq!([q.len(), y.len()], [out_dim; 2], "q or y does not have the given shape");
        let cache_fits = keys.len() == values.len() && keys.len().is_multiple_of(row_len);
        assert!(cache_fits, "the KV cache does not have the given shape");
        let (q, keys, values) = (Slice::from(q), Slice::from(keys), Slice::from(values));
        let tokens = keys.len() / row_len;
        let y = DisjointMut::new(y);
        let scale = (1.0 / (head_dim as f64).sqrt()) as f32;
        let min_heads = MIN_TOKENS_PER_THREAD.div_ceil(tokens.max(1));
        self.pool.run_ranges(heads, min_heads, 1, |range| {
            for head in range {
                let columns = |head: usize| head * head_dim..(head + 1) * head_dim;
                let kv = columns(head / (heads / kv_heads));
                // SAFETY: each head has its own columns.
                let y = unsafe { y.slice(columns(head)) };
                let q = q.slice(columns(head));
                let row = |token: usize| token * row_len + kv.start..token * row_len + kv.end;
                let score = |token: usize| {
                    let key = keys.slice(row(token));
                    (0..head_dim).map(|at| q.get(at) * key.get(at)).sum::<f32>() * scale
                };
                let mut softmax: Vec<f32> = (0..tokens).map(score).collect();
                let max = softmax.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                softmax.iter_mut().for_each(|score| *score = (*score - max).exp());
                let sum: f32 = softmax.iter().sum();
                let mut out = vec![0.0; head_dim];
                for (token, exp) in softmax.iter().enumerate() {
                    let value = values.slice(row(token));
                    for (at, out) in out.iter_mut().enumerate() {
                        *out += exp / sum * value.get(at);
                    }
                }
                copy_kernel(self.isa, Slice::F32(&out), y);
            }
        });
    }
}
