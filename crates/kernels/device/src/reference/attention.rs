//! Causal attention, head by head.

use super::{Reference, attention_chunk};
use crate::ops::{
    AttentionChunkSaved, AttentionChunkShape, AttentionDropout, AttentionOps, AttentionSaved,
    AttentionShape, RopeDirection,
};
use crate::tensor::{View, ViewMut};

impl AttentionOps for Reference {
    fn attention(
        &self,
        shape: AttentionShape,
        qkv: View<'_>,
        dropout: Option<AttentionDropout>,
        y: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) {
        forward(shape, qkv.as_slice(), dropout, y.as_slice(), lse.as_slice());
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        saved: AttentionSaved<'_>,
        dropout: Option<AttentionDropout>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    ) {
        backward(shape, saved.qkv.as_slice(), dropout, dy.as_slice(), dqkv.as_slice());
    }

    fn attention_chunk(
        &self,
        shape: AttentionChunkShape,
        q: View<'_>,
        kv: View<'_>,
        dropout: Option<AttentionDropout>,
        y: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) {
        let (q, kv) = (q.as_slice(), kv.as_slice());
        attention_chunk::forward(shape, q, kv, dropout, y.as_slice(), lse.as_slice());
    }

    fn attention_chunk_backward(
        &self,
        shape: AttentionChunkShape,
        saved: AttentionChunkSaved<'_>,
        dropout: Option<AttentionDropout>,
        dy: View<'_>,
        dq: ViewMut<'_>,
        dkv: ViewMut<'_>,
    ) {
        let (dq, dkv) = (dq.as_slice(), dkv.as_slice());
        attention_chunk::backward(shape, saved, dropout, dy.as_slice(), dq, dkv);
    }

    fn decode_attention(
        &self,
        shape: AttentionShape,
        q: View<'_>,
        keys: View<'_>,
        values: View<'_>,
        y: ViewMut<'_>,
    ) {
        decode(shape, q.as_slice(), keys.as_slice(), values.as_slice(), y.as_slice());
    }

    fn apply_rope(
        &self,
        shape: AttentionShape,
        theta: f64,
        positions: &[u32],
        direction: RopeDirection,
        qkv: ViewMut<'_>,
    ) {
        rope(shape, theta, positions, direction, qkv.as_slice());
    }
}

/// Offsets of the queries, keys and values of one head in a row of `qkv`.
struct Head {
    first_row: usize,
    head_dim: usize,
    row_len: usize,
    q: usize,
    k: usize,
    v: usize,
}

impl Head {
    fn new(shape: AttentionShape, sequence: usize, head: usize) -> Self {
        let d = shape.head_dim;
        let kv_head = head / (shape.heads / shape.kv_heads);
        let (k, v) = ((shape.heads + kv_head) * d, (shape.heads + shape.kv_heads + kv_head) * d);
        let first_row = sequence * shape.seq_len;
        Self { first_row, head_dim: d, row_len: shape.qkv_dim(), q: head * d, k, v }
    }

    /// The elements of a token that start at `offset` in its row.
    fn at(&self, token: usize, offset: usize) -> std::ops::Range<usize> {
        let start = (self.first_row + token) * self.row_len + offset;
        start..start + self.head_dim
    }

    /// Causal softmax of a query, and its log-sum-exp.
    fn probabilities(&self, qkv: &[f64], query: usize) -> (Vec<f64>, f64) {
        let q = &qkv[self.at(query, self.q)];
        let score = |key: usize| dot(q, &qkv[self.at(key, self.k)]) / (self.head_dim as f64).sqrt();
        softmax((0..=query).map(score).collect())
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn softmax(scores: Vec<f64>) -> (Vec<f64>, f64) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    (scores.iter().map(|s| (s - max).exp() / sum).collect(), max + sum.ln())
}

/// `to += from * by`.
pub(super) fn add(to: &mut [f64], from: &[f64], by: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from * by);
}

/// Dropout factor of a probability.
pub(super) fn dropout_factor(dropout: Option<AttentionDropout>, at: [usize; 4]) -> f64 {
    dropout.map_or(1.0, |dropout| f64::from(dropout.mask.factor(dropout.index(at))))
}

fn forward(
    shape: AttentionShape,
    qkv: &[f64],
    dropout: Option<AttentionDropout>,
    y: &mut [f64],
    lse: &mut [f64],
) {
    y.fill(0.0);
    for (b, h) in (0..shape.batch).flat_map(|b| (0..shape.heads).map(move |h| (b, h))) {
        let head = Head::new(shape, b, h);
        for query in 0..shape.seq_len {
            let (probabilities, row_lse) = head.probabilities(qkv, query);
            lse[(b * shape.heads + h) * shape.seq_len + query] = row_lse;
            let start = (head.first_row + query) * shape.out_dim() + head.q;
            let y = &mut y[start..start + shape.head_dim];
            for (key, p) in probabilities.iter().enumerate() {
                add(y, &qkv[head.at(key, head.v)], p * dropout_factor(dropout, [b, h, query, key]));
            }
        }
    }
}

fn backward(
    shape: AttentionShape,
    qkv: &[f64],
    dropout: Option<AttentionDropout>,
    dy: &[f64],
    dqkv: &mut [f64],
) {
    dqkv.fill(0.0);
    let scale = 1.0 / (shape.head_dim as f64).sqrt();
    for (b, h) in (0..shape.batch).flat_map(|b| (0..shape.heads).map(move |h| (b, h))) {
        let head = Head::new(shape, b, h);
        for query in 0..shape.seq_len {
            let (p, _) = head.probabilities(qkv, query);
            let start = (head.first_row + query) * shape.out_dim() + head.q;
            let dy = &dy[start..start + shape.head_dim];
            let factor = |key| dropout_factor(dropout, [b, h, query, key]);
            let dp: Vec<f64> =
                (0..=query).map(|key| dot(dy, &qkv[head.at(key, head.v)]) * factor(key)).collect();
            let mean = dot(&dp, &p);
            for key in 0..=query {
                let ds = p[key] * (dp[key] - mean) * scale;
                add(&mut dqkv[head.at(query, head.q)], &qkv[head.at(key, head.k)], ds);
                add(&mut dqkv[head.at(key, head.k)], &qkv[head.at(query, head.q)], ds);
                add(&mut dqkv[head.at(key, head.v)], dy, p[key] * factor(key));
            }
        }
    }
}

fn decode(shape: AttentionShape, q: &[f64], keys: &[f64], values: &[f64], y: &mut [f64]) {
    let (d, row) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    y.fill(0.0);
    for head in 0..shape.heads {
        let kv_head = head / (shape.heads / shape.kv_heads) * d
            ..(head / (shape.heads / shape.kv_heads) + 1) * d;
        let local = head * d..(head + 1) * d;
        let score = |key: &[f64]| dot(&q[local.clone()], &key[kv_head.clone()]) / (d as f64).sqrt();
        let (p, _) = softmax(keys.chunks_exact(row).map(score).collect());
        for (p, value) in p.iter().zip(values.chunks_exact(row)) {
            add(&mut y[local.clone()], &value[kv_head.clone()], *p);
        }
    }
}

fn rope(
    shape: AttentionShape,
    theta: f64,
    positions: &[u32],
    direction: RopeDirection,
    qkv: &mut [f64],
) {
    assert_eq!(positions.len(), shape.seq_len);
    let half = shape.head_dim / 2;
    for (row, elements) in qkv.chunks_exact_mut(shape.qkv_dim()).enumerate() {
        let position = f64::from(positions[row % shape.seq_len]);
        for head in elements.chunks_exact_mut(shape.head_dim).take(shape.heads + shape.kv_heads) {
            for i in 0..half {
                let angle = position * theta.powf(-(i as f64) / half as f64);
                let (sin, cos) = angle.sin_cos();
                let sin = if direction == RopeDirection::Forward { sin } else { -sin };
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
}
