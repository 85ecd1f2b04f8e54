//! Attention to a chunk of keys, merged by lse with that to other chunks.

use super::attention::{dot, dropout_factor};
use crate::ops::{AttentionChunkShape, AttentionDropout};

/// A query of one head and its visible keys.
pub struct Query {
    /// Its elements in `q`, `y` and their gradients.
    pub elements: std::ops::Range<usize>,
    /// Its index in `lse`.
    pub lse: usize,
    /// Offsets of its visible keys and values in `kv`.
    pub keys: Vec<[usize; 2]>,
    /// Sequence, head and query.
    pub index: [usize; 3],
}

impl Query {
    pub fn all(shape: AttentionChunkShape) -> impl Iterator<Item = Self> {
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

    pub fn scores(&self, q: &[f64], kv: &[f64]) -> Vec<f64> {
        let d = self.elements.len();
        let q = &q[self.elements.clone()];
        let score = |key: &[usize; 2]| dot(q, &kv[key[0]..key[0] + d]) / (d as f64).sqrt();
        self.keys.iter().map(score).collect()
    }

    pub fn dropout_factor(&self, dropout: Option<AttentionDropout>, key: usize) -> f64 {
        let [sequence, head, query] = self.index;
        dropout_factor(dropout, [sequence, head, query, key])
    }
}
