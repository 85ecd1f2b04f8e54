//! Attention of one new token.

use super::super::Cpu;
use super::super::elementwise::copy;
use super::super::numbers::{Apart, Source};
use regatta_device::device::Attention;
use regatta_device::memory::{View, ViewMut};

impl Cpu {
    pub(in super::super) fn attend_one(
        &self,
        of: Attention,
        q: View<'_>,
        keys: View<'_>,
        values: View<'_>,
        y: ViewMut<'_>,
    ) {
        let row = of.kv_heads * of.head_width;
        assert!(q.len() == of.width() && y.len() == of.width(), "a row of another width");
        assert!(keys.len() == values.len() && keys.len().is_multiple_of(row), "rows of keys");
        let (q, keys, values) = (Source::from(q), Source::from(keys), Source::from(values));
        let tokens = keys.len() / row;
        let y = Apart::new(y);
        let scale = (1.0 / (of.head_width as f64).sqrt()) as f32;
        self.pool.run_ranges(of.heads, 4096usize.div_ceil(tokens.max(1)), 1, |heads| {
            for head in heads {
                let of_head = |head: usize| head * of.head_width..(head + 1) * of.head_width;
                let kv = of_head(head / (of.heads / of.kv_heads));
                // SAFETY: each head has its own numbers.
                let mut y = unsafe { y.part(of_head(head)) };
                let q = q.part(of_head(head));
                let of_token = |token: usize| token * row + kv.start..token * row + kv.end;
                let score = |token: usize| {
                    let key = keys.part(of_token(token));
                    let products = (0..of.head_width).map(|at| q.one(at) * key.one(at));
                    products.sum::<f32>() * scale
                };
                let mut softmax: Vec<f32> = (0..tokens).map(score).collect();
                let most = softmax.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                softmax.iter_mut().for_each(|number| *number = (*number - most).exp());
                let sum: f32 = softmax.iter().sum();
                let mut out = vec![0.0; of.head_width];
                for (token, share) in softmax.iter().enumerate() {
                    let value = values.part(of_token(token));
                    for (at, out) in out.iter_mut().enumerate() {
                        *out += share / sum * value.one(at);
                    }
                }
                copy(self.level, Source::F32(&out), y.part(0..of.head_width));
            }
        });
    }
}
