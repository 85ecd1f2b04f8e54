//! What operations are told: sizes, ways, and what is handed from a forward pass to its backward one.

use crate::memory::{View, ViewMut};
use crate::random::Mask;

/// A matrix product: `rows` times `inputs` in, `rows` times `outputs` out; the weight is `outputs`
/// times `inputs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// Tokens.
    pub rows: usize,
    /// Numbers of a token that go in.
    pub inputs: usize,
    /// Numbers of a token that come out.
    pub outputs: usize,
}

/// How rows are brought to the same scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// Mean 0 and variance 1.
    Layer {
        /// Added to the variance.
        epsilon: f64,
    },
    /// Mean square 1.
    Rms {
        /// Added to the mean square.
        epsilon: f64,
    },
}

/// Causal attention. A row of `qkv` has the queries of all heads, then the keys of all key heads,
/// then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub sequence: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_width: usize,
}

impl Attention {
    /// Numbers of a row of `qkv`.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width
    }

    /// Numbers of a row that comes out.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.batch * self.sequence
    }
}

/// Attention of some tokens to some tokens, as a part of attention to more. A row of queries has
/// those of all heads; a row of keys and values has the keys of all key heads, then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionPart {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each that look.
    pub queries: usize,
    /// Tokens of each that are looked at.
    pub keys: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_width: usize,
    /// Whether the first query and the first key are of the same token, and queries see no keys
    /// behind their own. Else all keys are before all queries.
    pub causal: bool,
}

impl AttentionPart {
    /// Numbers of a row of queries, and of a row that comes out.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Numbers of a row of keys and values.
    pub fn kv_width(&self) -> usize {
        2 * self.kv_heads * self.head_width
    }

    /// Rows of queries.
    pub fn rows(&self) -> usize {
        self.batch * self.queries
    }

    /// Rows of keys and values.
    pub fn kv_rows(&self) -> usize {
        self.batch * self.keys
    }

    /// How many keys a query sees.
    pub fn seen(&self, query: usize) -> usize {
        if self.causal { self.keys.min(query + 1) } else { self.keys }
    }
}

impl From<Attention> for AttentionPart {
    /// The whole, as its own part.
    fn from(of: Attention) -> Self {
        let Attention { batch, sequence, heads, kv_heads, head_width } = of;
        let (queries, keys) = (sequence, sequence);
        Self { batch, queries, keys, heads, kv_heads, head_width, causal: true }
    }
}

/// Which of a softmax's numbers are left out. That of sequence `b`, head `h`, query `q` and key `k`
/// has the mask's index `b * per_sequence + h * per_head + q * per_query + k`: with the strides of
/// the whole, some of the heads or tokens lose what they would lose there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDrop {
    /// The mask, whose first number is that of the first sequence, head, query and key here.
    pub mask: Mask,
    /// From a sequence to the next.
    pub per_sequence: u64,
    /// From a head to the next.
    pub per_head: u64,
    /// From a query to the next.
    pub per_query: u64,
}

impl AttentionDrop {
    /// That of all heads and tokens. The mask's first number is the first sequence's.
    pub fn whole(mask: Mask, heads: usize, sequence: usize) -> Self {
        let (heads, per_query) = (heads as u64, sequence as u64);
        let per_head = per_query.wrapping_mul(per_query);
        Self { mask, per_sequence: heads.wrapping_mul(per_head), per_head, per_query }
    }

    /// From a sequence, head, query and key on.
    pub fn from(self, [sequence, head, query, key]: [usize; 4]) -> Self {
        let index = self.index([sequence, head, query, key]);
        Self { mask: Mask { first: self.mask.first.wrapping_add(index), ..self.mask }, ..self }
    }

    /// The mask's index of a number.
    pub fn index(&self, [sequence, head, query, key]: [usize; 4]) -> u64 {
        let part = |count: usize, each: u64| (count as u64).wrapping_mul(each);
        part(sequence, self.per_sequence)
            .wrapping_add(part(head, self.per_head))
            .wrapping_add(part(query, self.per_query))
            .wrapping_add(key as u64)
    }
}

/// Which way rotary positions turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Forward.
    There,
    /// Backward: the gradient's way.
    Back,
}

/// What a norm's backward pass needs of the forward one.
#[derive(Debug, Clone, Copy)]
pub struct NormSaved<'a> {
    /// What went in.
    pub x: View<'a>,
    /// The weight.
    pub weight: View<'a>,
    /// The mean and one over the deviation of each row.
    pub statistics: View<'a>,
}

/// Where the gradients of a norm's parameters are added.
#[derive(Debug)]
pub struct NormGrads<'a> {
    /// Of the weight.
    pub weight: ViewMut<'a>,
    /// Of the bias, if it has one.
    pub bias: Option<ViewMut<'a>>,
}

/// What attention's backward pass needs of the forward one.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a> {
    /// What went in.
    pub qkv: View<'a>,
    /// What came out.
    pub y: View<'a>,
    /// The logarithm of each softmax's sum.
    pub log_sums: View<'a>,
}

/// What the backward pass of a part of attention needs.
#[derive(Debug, Clone, Copy)]
pub struct AttentionPartSaved<'a> {
    /// The queries.
    pub q: View<'a>,
    /// The keys and values of this part.
    pub kv: View<'a>,
    /// What came out of all parts.
    pub y: View<'a>,
    /// The logarithm of each softmax's sum over all parts.
    pub log_sums: View<'a>,
}
