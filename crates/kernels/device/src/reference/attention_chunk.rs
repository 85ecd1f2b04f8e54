//! Attention to a chunk of keys, merged by lse with that to other chunks.

use super::attention::{add, dot, dropout_factor, softmax};
use crate::ops::{AttentionChunkSaved, AttentionChunkShape, AttentionDropout};

/// A query of one head and its visible keys.
struct Query {
    /// Its elements in `q`, `y` and their gradients.
    elements: std::ops::Range<usize>,
    /// Its index in `lse`.
    lse: usize,
    /// Offsets of its visible keys and values in `kv`.
    keys: Vec<[usize; 2]>,
    /// Sequence, head and query.
    index: [usize; 3],
}

impl Query {
    fn all(shape: AttentionChunkShape) -> impl Iterator<Item = Self> {
        let heads = move |row: usize| (0..shape.heads).map(move |head| (row, head));
        (0..shape.rows()).flat_map(heads).map(move |(row, head)| Self::new(shape, row, head))
    }

    fn new(shape: AttentionChunkShape, row: usize, head: usize) -> Self {
        let (sequence, query, d) = (row / shape.queries, row % shape.queries, shape.head_dim);
        let kv_head = head / (shape.heads / shape.kv_heads);
        let start = row * shape.out_dim() + head * d;
        let key = |key: usize| {
            let row = (sequence * shape.keys + key) * shape.kv_dim();
            [row + kv_head * d, row + (shape.kv_heads + kv_head) * d]
        };
        Self {
            elements: start..start + d,
            lse: row * shape.heads + head,
            keys: (0..shape.visible_keys(query)).map(key).collect(),
            index: [sequence, head, query],
        }
    }

    fn scores(&self, q: &[f64], kv: &[f64]) -> Vec<f64> {
        let d = self.elements.len();
        let q = &q[self.elements.clone()];
        let score = |key: &[usize; 2]| dot(q, &kv[key[0]..key[0] + d]) / (d as f64).sqrt();
        self.keys.iter().map(score).collect()
    }

    fn dropout_factor(&self, dropout: Option<AttentionDropout>, key: usize) -> f64 {
        let [sequence, head, query] = self.index;
        dropout_factor(dropout, [sequence, head, query, key])
    }
}

fn check(shape: AttentionChunkShape, q: &[f64], kv: &[f64], y: &[f64], lse: &[f64]) {
    assert_eq!(
        (q.len(), y.len()),
        (shape.rows() * shape.out_dim(), shape.rows() * shape.out_dim())
    );
    assert_eq!(kv.len(), shape.kv_rows() * shape.kv_dim());
    assert_eq!(lse.len(), shape.rows() * shape.heads);
}

pub fn forward(
    shape: AttentionChunkShape,
    q: &[f64],
    kv: &[f64],
    dropout: Option<AttentionDropout>,
    y: &mut [f64],
    lse: &mut [f64],
) {
    check(shape, q, kv, y, lse);
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

pub fn backward(
    shape: AttentionChunkShape,
    saved: AttentionChunkSaved<'_>,
    dropout: Option<AttentionDropout>,
    dy: &[f64],
    dq: &mut [f64],
    dkv: &mut [f64],
) {
    let (q, kv) = (saved.q.as_slice::<f64>(), saved.kv.as_slice::<f64>());
    let (y, lse) = (saved.y.as_slice::<f64>(), saved.lse.as_slice::<f64>());
    check(shape, q, kv, y, lse);
    assert_eq!((dy.len(), dq.len(), dkv.len()), (y.len(), q.len(), kv.len()));
    let (d, scale) = (shape.head_dim, 1.0 / (shape.head_dim as f64).sqrt());
    for query in Query::all(shape) {
        let local = query.elements.clone();
        let dy = &dy[local.clone()];
        // The row sum of dP∘P over the keys of all chunks.
        let delta = dot(dy, &y[local.clone()]);
        let scores = query.scores(q, kv);
        for (at, (score, [key, value])) in scores.iter().zip(&query.keys).enumerate() {
            let (p, factor) = ((score - lse[query.lse]).exp(), query.dropout_factor(dropout, at));
            let ds = p * (dot(dy, &kv[*value..value + d]) * factor - delta) * scale;
            add(&mut dq[local.clone()], &kv[*key..key + d], ds);
            add(&mut dkv[*key..key + d], &q[local.clone()], ds);
            add(&mut dkv[*value..value + d], dy, p * factor);
        }
    }
}
