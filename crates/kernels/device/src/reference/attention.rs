//! Causal attention, head by head.

use super::Reference;
use super::attention_chunk::Query;
use crate::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionChunkArgs, AttentionChunkBackwardArgs,
    AttentionDropout, AttentionOps, AttentionShape, DecodeAttentionArgs, RopeArgs, RopeDirection,
};
use crate::tensor::{View, ViewMut};

impl AttentionOps for Reference {
    fn attention(&self, args: AttentionArgs<'_>) {
        let AttentionArgs { shape, qkv, dropout, y, lse } = args;
        let (qkv, y, lse) = (qkv.as_slice(), y.as_slice(), lse.as_slice::<f64>());
        y.fill(0.0);
        for (b, h) in (0..shape.batch).flat_map(|b| (0..shape.heads).map(move |h| (b, h))) {
            let head = Head::new(shape, b, h);
            for query in 0..shape.seq_len {
                let (probabilities, row_lse) = head.probabilities(qkv, query);
                lse[(b * shape.heads + h) * shape.seq_len + query] = row_lse;
                let start = (head.first_row + query) * shape.out_dim() + head.q;
                let y = &mut y[start..start + shape.head_dim];
                for (key, p) in probabilities.iter().enumerate() {
                    add(
                        y,
                        &qkv[head.at(key, head.v)],
                        p * dropout_factor(dropout, [b, h, query, key]),
                    );
                }
            }
        }
    }

    fn attention_backward(&self, args: AttentionBackwardArgs<'_>) {
        let AttentionBackwardArgs { shape, saved, dropout, dy, dqkv } = args;
        let (qkv, dy, dqkv) = (saved.qkv.as_slice(), dy.as_slice::<f64>(), dqkv.as_slice());
        dqkv.fill(0.0);
        let scale = 1.0 / (shape.head_dim as f64).sqrt();
        for (b, h) in (0..shape.batch).flat_map(|b| (0..shape.heads).map(move |h| (b, h))) {
            let head = Head::new(shape, b, h);
            for query in 0..shape.seq_len {
                let (p, _) = head.probabilities(qkv, query);
                let start = (head.first_row + query) * shape.out_dim() + head.q;
                let dy = &dy[start..start + shape.head_dim];
                let factor = |key| dropout_factor(dropout, [b, h, query, key]);
                let dp: Vec<f64> = (0..=query)
                    .map(|key| dot(dy, &qkv[head.at(key, head.v)]) * factor(key))
                    .collect();
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

    fn attention_chunk(&self, args: AttentionChunkArgs<'_>) {
        let AttentionChunkArgs { shape, q, kv, dropout, y, lse } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        let (q, kv) = (q.as_slice::<f64>(), kv.as_slice::<f64>());
        let (y, lse) = (y.as_slice::<f64>(), lse.as_slice::<f64>());
        let d = shape.head_dim;
        for query in Query::all(shape).filter(|query| !query.keys.is_empty()) {
            let (probabilities, new) = softmax(query.scores(q, kv));
            let (y, old) = (&mut y[query.elements.clone()], lse[query.lse]);
            let max = old.max(new);
            let merged = max + ((old - max).exp() + (new - max).exp()).ln();
            match old == f64::NEG_INFINITY {
                true => y.fill(0.0),
                false => y.iter_mut().for_each(|y| *y *= (old - merged).exp()),
            }
            for (at, (p, [_, value])) in probabilities.iter().zip(&query.keys).enumerate() {
                let weight = p * query.dropout_factor(dropout, at) * (new - merged).exp();
                add(y, &kv[*value..value + d], weight);
            }
            lse[query.lse] = merged;
        }
    }

    fn attention_chunk_backward(&self, args: AttentionChunkBackwardArgs<'_>) {
        let AttentionChunkBackwardArgs { shape, q, kv, y, lse, dropout, dy, dq, dkv } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        shape.check_lengths(dq.len(), dkv.len(), dy.len(), lse.len());
        let [q, kv, y, lse, dy] = [q, kv, y, lse, dy].map(View::as_slice::<f64>);
        let [dq, dkv] = [dq, dkv].map(ViewMut::as_slice::<f64>);
        let (d, scale) = (shape.head_dim, 1.0 / (shape.head_dim as f64).sqrt());
        for query in Query::all(shape) {
            let local = query.elements.clone();
            let dy = &dy[local.clone()];
            // The row sum of dP∘P over the keys of all chunks.
            let delta = dot(dy, &y[local.clone()]);
            let scores = query.scores(q, kv);
            for (at, (score, [key, value])) in scores.iter().zip(&query.keys).enumerate() {
                let (p, factor) =
                    ((score - lse[query.lse]).exp(), query.dropout_factor(dropout, at));
                let ds = p * (dot(dy, &kv[*value..value + d]) * factor - delta) * scale;
                add(&mut dq[local.clone()], &kv[*key..key + d], ds);
                add(&mut dkv[*key..key + d], &q[local.clone()], ds);
                add(&mut dkv[*value..value + d], dy, p * factor);
            }
        }
    }

    fn decode_attention(&self, args: DecodeAttentionArgs<'_>) {
        let DecodeAttentionArgs { shape, q, keys, values, y } = args;
        let (q, y) = (q.as_slice::<f64>(), y.as_slice::<f64>());
        let (keys, values) = (keys.as_slice::<f64>(), values.as_slice::<f64>());
        let (d, row) = (shape.head_dim, shape.kv_heads * shape.head_dim);
        y.fill(0.0);
        for head in 0..shape.heads {
            let [local, kv_head] =
                [head, head / (shape.heads / shape.kv_heads)].map(|h| h * d..(h + 1) * d);
            let q = &q[local.clone()];
            let score = |key: &[f64]| dot(q, &key[kv_head.clone()]) / (d as f64).sqrt();
            let (p, _) = softmax(keys.chunks_exact(row).map(score).collect());
            for (p, value) in p.iter().zip(values.chunks_exact(row)) {
                add(&mut y[local.clone()], &value[kv_head.clone()], *p);
            }
        }
    }

    fn apply_rope(&self, args: RopeArgs<'_>) {
        let RopeArgs { shape, theta, positions, direction, qkv } = args;
        let positions = positions.as_slice::<i32>();
        assert_eq!(positions.len(), shape.seq_len);
        let half = shape.head_dim / 2;
        let qkv = qkv.as_slice::<f64>();
        for (row, elements) in qkv.chunks_exact_mut(shape.qkv_dim()).enumerate() {
            let position = f64::from(positions[row % shape.seq_len]);
            for head in elements.chunks_exact_mut(shape.head_dim).take(shape.heads + shape.kv_heads)
            {
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
