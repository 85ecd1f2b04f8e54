//! Causal attention and rotary position embedding.

use crate::random::DropoutMask;
use crate::tensor::{View, ViewMut};

/// Shape of causal attention. A row of `qkv` has the queries of all heads, then the keys of all key/value
/// heads, then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl AttentionShape {
    /// Elements of a row of `qkv`.
    pub fn qkv_dim(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a row of the output.
    pub fn out_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.batch * self.seq_len
    }

    /// # Panics
    /// If one of these lengths is not that of the tensor, or of its gradient.
    pub fn check_lengths(self, qkv: usize, y: usize, lse: usize) {
        assert_eq!(qkv, self.rows() * self.qkv_dim(), "qkv does not have the shape");
        check_output_lengths(&self.into(), y, lse);
    }
}

fn check_output_lengths(shape: &AttentionChunkShape, y: usize, lse: usize) {
    assert_eq!(y, shape.rows() * shape.out_dim(), "y does not have the shape");
    assert_eq!(lse, shape.rows() * shape.heads, "lse does not have the shape");
}

/// Shape of attention from a chunk of queries to a chunk of keys, as in ring attention. A row of `q` has the
/// queries of all heads; a row of `kv` has the keys of all key/value heads, then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionChunkShape {
    /// Sequences.
    pub batch: usize,
    /// Query tokens per sequence.
    pub queries: usize,
    /// Key tokens per sequence.
    pub keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Whether queries and keys start at the same token and the causal mask applies. Otherwise all keys
    /// precede all queries.
    pub causal: bool,
}

impl AttentionChunkShape {
    /// Elements of a row of `q` and of the output.
    pub fn out_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of a row of `kv`.
    pub fn kv_dim(&self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// Rows of `q`.
    pub fn rows(&self) -> usize {
        self.batch * self.queries
    }

    /// Rows of `kv`.
    pub fn kv_rows(&self) -> usize {
        self.batch * self.keys
    }

    /// # Panics
    /// If one of these lengths is not that of the tensor, or of its gradient.
    pub fn check_lengths(&self, q: usize, kv: usize, y: usize, lse: usize) {
        assert_eq!(q, self.rows() * self.out_dim(), "q does not have the shape");
        assert_eq!(kv, self.kv_rows() * self.kv_dim(), "kv does not have the shape");
        check_output_lengths(self, y, lse);
    }

    /// Number of keys that a query attends to.
    pub fn visible_keys(&self, query: usize) -> usize {
        if self.causal { self.keys.min(query + 1) } else { self.keys }
    }
}

impl From<AttentionShape> for AttentionChunkShape {
    /// Full attention as a single chunk.
    fn from(shape: AttentionShape) -> Self {
        let AttentionShape { batch, seq_len, heads, kv_heads, head_dim } = shape;
        let (queries, keys) = (seq_len, seq_len);
        Self { batch, queries, keys, heads, kv_heads, head_dim, causal: true }
    }
}

/// Dropout of attention probabilities. The probability of sequence `b`, head `h`, query `q` and key `k` has
/// the mask index `b * sequence_stride + h * head_stride + q * query_stride + k`. With the strides of the
/// full batch, a shard of heads or tokens has the mask of the full batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AttentionDropout {
    /// The mask; its offset is the index of the first sequence, head, query and key of the shard.
    pub mask: DropoutMask,
    /// Stride between sequences.
    pub sequence_stride: u64,
    /// Stride between heads.
    pub head_stride: u64,
    /// Stride between queries.
    pub query_stride: u64,
}

impl AttentionDropout {
    /// For all heads and tokens. The mask's offset is that of the first sequence.
    pub fn new(mask: DropoutMask, heads: usize, seq_len: usize) -> Self {
        let (heads, query_stride) = (heads as u64, seq_len as u64);
        let head_stride = query_stride.wrapping_mul(query_stride);
        let sequence_stride = heads.wrapping_mul(head_stride);
        Self { mask, sequence_stride, head_stride, query_stride }
    }

    /// The dropout of a shard that starts at this sequence, head, query and key.
    pub fn shard(self, [sequence, head, query, key]: [usize; 4]) -> Self {
        let index = self.index([sequence, head, query, key]);
        let offset = self.mask.offset.wrapping_add(index);
        Self { mask: DropoutMask { offset, ..self.mask }, ..self }
    }

    /// Index of a probability in the mask.
    pub fn index(&self, [sequence, head, query, key]: [usize; 4]) -> u64 {
        let term = |count: usize, stride: u64| (count as u64).wrapping_mul(stride);
        term(sequence, self.sequence_stride)
            .wrapping_add(term(head, self.head_stride))
            .wrapping_add(term(query, self.query_stride))
            .wrapping_add(key as u64)
    }
}

/// Direction of the rotation of rotary position embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeDirection {
    /// Forward pass.
    Forward,
    /// Inverse rotation, for gradients.
    Inverse,
}

/// Arguments of [`AttentionOps::attention`].
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// Shape.
    pub shape: AttentionShape,
    /// Queries, keys and values.
    pub qkv: View<'a>,
    /// Dropout of probabilities.
    pub dropout: Option<AttentionDropout>,
    /// Output.
    pub y: ViewMut<'a>,
    /// Log-sum-exp of each softmax.
    pub lse: ViewMut<'a>,
}

/// Inputs of attention's backward pass from the forward pass.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a> {
    /// Input.
    pub qkv: View<'a>,
    /// Output.
    pub y: View<'a>,
    /// Log-sum-exp of each softmax.
    pub lse: View<'a>,
}

/// Arguments of [`AttentionOps::attention_backward`].
#[derive(Debug)]
pub struct AttentionBackwardArgs<'a> {
    /// Shape.
    pub shape: AttentionShape,
    /// Inputs of the forward pass, and its results.
    pub saved: AttentionSaved<'a>,
    /// Dropout of probabilities.
    pub dropout: Option<AttentionDropout>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of `qkv`.
    pub dqkv: ViewMut<'a>,
}

/// Arguments of [`AttentionOps::attention_chunk`].
#[derive(Debug)]
pub struct AttentionChunkArgs<'a> {
    /// Shape.
    pub shape: AttentionChunkShape,
    /// Queries.
    pub q: View<'a>,
    /// Keys and values of this chunk.
    pub kv: View<'a>,
    /// Dropout of probabilities.
    pub dropout: Option<AttentionDropout>,
    /// Output.
    pub y: ViewMut<'a>,
    /// Log-sum-exp of each softmax.
    pub lse: ViewMut<'a>,
}

/// Arguments of [`AttentionOps::attention_chunk_backward`].
#[derive(Debug)]
pub struct AttentionChunkBackwardArgs<'a> {
    /// Shape.
    pub shape: AttentionChunkShape,
    /// Queries.
    pub q: View<'a>,
    /// Keys and values of this chunk.
    pub kv: View<'a>,
    /// Output over all chunks.
    pub y: View<'a>,
    /// Log-sum-exp over all chunks.
    pub lse: View<'a>,
    /// Dropout of probabilities.
    pub dropout: Option<AttentionDropout>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of `q`.
    pub dq: ViewMut<'a>,
    /// Gradient of `kv`.
    pub dkv: ViewMut<'a>,
}

/// Arguments of [`AttentionOps::decode_attention`].
#[derive(Debug)]
pub struct DecodeAttentionArgs<'a> {
    /// Shape.
    pub shape: AttentionShape,
    /// Queries.
    pub q: View<'a>,
    /// Cached keys.
    pub keys: View<'a>,
    /// Cached values.
    pub values: View<'a>,
    /// Output.
    pub y: ViewMut<'a>,
}

/// Arguments of [`AttentionOps::apply_rope`].
#[derive(Debug)]
pub struct RopeArgs<'a> {
    /// Shape.
    pub shape: AttentionShape,
    /// Base of the wavelengths.
    pub theta: f64,
    /// Position of each token of a sequence.
    pub positions: View<'a>,
    /// Direction.
    pub direction: RopeDirection,
    /// Queries, keys and values.
    pub qkv: ViewMut<'a>,
}

/// Attention and RoPE.
pub trait AttentionOps {
    /// Causal attention: `y = softmax(q kᵀ / √head_dim) v` per head. `lse` receives the log-sum-exp per
    /// sequence, head and token.
    fn attention(&self, args: AttentionArgs<'_>);

    /// Writes the gradient to `dqkv`.
    fn attention_backward(&self, args: AttentionBackwardArgs<'_>);

    /// Merges the attention to a chunk of keys into `y` and `lse`. `y` has the master dtype because chunks
    /// are accumulated; `lse` has one element per row and head. Where `lse` is -∞, `y` is undefined.
    fn attention_chunk(&self, args: AttentionChunkArgs<'_>);

    /// Accumulates the gradients through this chunk of keys into `dq` and `dkv`, which have the master
    /// dtype. `y` and `lse` are those over all chunks.
    fn attention_chunk_backward(&self, args: AttentionChunkBackwardArgs<'_>);

    /// Decoding: the query of one new token of one sequence against the KV cache `keys` and `values`, which
    /// have `kv_heads * head_dim` elements per token and include the new token.
    fn decode_attention(&self, args: DecodeAttentionArgs<'_>);

    /// Rotates queries and keys in place by their `positions`, one per token of a sequence. Element `i` of a
    /// head is paired with element `i + head_dim / 2`.
    fn apply_rope(&self, args: RopeArgs<'_>);
}
