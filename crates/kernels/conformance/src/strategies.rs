//! Random operations. Sizes are below `max`.

use proptest::prelude::*;
use regatta_device::ops::{AttentionDropout, AttentionShape, LinearShape, Norm};
use regatta_device::random::DropoutMask;

use crate::attention::{CausalAttention, Rope};
use crate::attention_chunks::chunked_attention;
use crate::embedding_loss::{
    CrossEntropy, Embedding, PositionEmbedding, VocabParallelCrossEntropy,
};
use crate::gradient_check::Operation;
use crate::layers::{Dropout, Gelu, Linear, LinearGelu, Swiglu};
use crate::norms::{AddNorm, NormLayer};

fn linear_shape(max: usize) -> impl Strategy<Value = LinearShape> {
    let fields = (1..max, 1..max, 1..max);
    fields.prop_map(|(rows, inputs, outputs)| LinearShape { rows, inputs, outputs })
}

fn linear(max: usize) -> impl Strategy<Value = Linear> {
    let fields = (linear_shape(max), any::<bool>(), any::<bool>(), any::<bool>());
    fields.prop_map(|(shape, bias, accumulate, logits)| Linear { shape, bias, accumulate, logits })
}

fn linear_gelu(max: usize) -> impl Strategy<Value = LinearGelu> {
    let fields = (linear_shape(max), any::<bool>());
    fields.prop_map(|(shape, bias)| LinearGelu { shape, bias })
}

/// With a large eps: rows of almost equal elements are too steep for finite differences.
fn norm(max: usize) -> impl Strategy<Value = NormLayer> {
    let fields = (any::<bool>(), 0.1..0.5, 1..max, 1..max, any::<bool>(), any::<bool>());
    fields.prop_map(|(layer, eps, rows, dim, bias, dx_copy)| {
        let norm = if layer { Norm::Layer { eps } } else { Norm::Rms { eps } };
        NormLayer { norm, rows, dim, bias, dx_copy }
    })
}

/// A mask of a shard.
pub fn dropout_mask() -> impl Strategy<Value = DropoutMask> {
    let fields = (0.0f32..0.9, any::<u64>(), 0u64..1 << 33);
    fields.prop_map(|(p, key, offset)| DropoutMask { p, key, offset })
}

/// `head_dim` is a multiple of `unit`.
pub fn attention_shape(max: usize, unit: usize) -> impl Strategy<Value = AttentionShape> {
    let fields = (1usize..3, 1..max, 1usize..3, 1usize..4, 1..max);
    fields.prop_map(move |(batch, seq_len, kv_heads, group, units)| {
        let (heads, head_dim) = (kv_heads * group, units * unit);
        AttentionShape { batch, seq_len, heads, kv_heads, head_dim }
    })
}

/// Dropout of a shard.
fn attention_dropout(shape: AttentionShape) -> impl Strategy<Value = Option<AttentionDropout>> {
    let shard = (dropout_mask(), 0usize..3, 0usize..9).prop_map(move |(mask, heads, tokens)| {
        AttentionDropout::new(mask, shape.heads + heads, shape.seq_len + tokens)
            .shard([0, heads, tokens, 0])
    });
    proptest::option::of(shard)
}

fn attention(max: usize) -> impl Strategy<Value = CausalAttention> {
    attention_shape(max, 1).prop_flat_map(|shape| {
        attention_dropout(shape).prop_map(move |dropout| CausalAttention { shape, dropout })
    })
}

fn rope(max: usize) -> impl Strategy<Value = Rope> {
    let fields = (attention_shape(max, 2), 10.0..10_000.0, any::<u64>());
    fields.prop_map(|(shape, theta, seed)| Rope { shape, theta, seed })
}

/// Start and length of a non-empty subrange of `0..len`.
pub fn subrange(len: usize) -> impl Strategy<Value = (usize, usize)> {
    (0..len).prop_flat_map(move |first| (Just(first), 1..=len - first))
}

fn embedding(max: usize) -> impl Strategy<Value = Embedding> {
    let vocab = (1..max).prop_flat_map(|vocab| (Just(vocab), subrange(vocab)));
    let fields = (1..max, vocab, 1..max, any::<u64>());
    fields.prop_map(|(rows, (vocab, (first, local_vocab)), dim, seed)| Embedding {
        rows,
        vocab,
        first,
        local_vocab,
        dim,
        seed,
    })
}

fn position_embedding(max: usize) -> impl Strategy<Value = PositionEmbedding> {
    let fields = (1usize..4, 1..max, 1..max, 1..max, any::<u64>());
    fields.prop_map(|(batch, seq_len, max_positions, dim, seed)| PositionEmbedding {
        batch,
        seq_len,
        max_positions,
        dim,
        seed,
    })
}

/// Padding of rows of logits.
fn padding() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..20usize]
}

/// Cross-entropy of all columns.
pub fn cross_entropy(max: usize) -> impl Strategy<Value = CrossEntropy> {
    let fields = (1..max, 1..max, padding(), any::<u64>());
    fields.prop_map(|(rows, vocab, padding, seed)| CrossEntropy { rows, vocab, padding, seed })
}

/// Cross-entropy of two ranks.
pub fn vocab_parallel(max: usize) -> impl Strategy<Value = VocabParallelCrossEntropy> {
    let fields = (1..max, 1..max, 1..max, padding(), any::<u64>());
    fields.prop_map(|(rows, split, rest, padding, seed)| {
        let full = CrossEntropy { rows, vocab: split + rest, padding, seed };
        VocabParallelCrossEntropy { full, split }
    })
}

fn dropout(max: usize) -> impl Strategy<Value = Dropout> {
    let fields = (1..max * max, dropout_mask(), any::<bool>());
    fields.prop_map(|(len, mask, residual)| Dropout { len, mask, residual })
}

fn swiglu(max: usize) -> impl Strategy<Value = Swiglu> {
    (1..max, 1..max).prop_map(|(rows, dim)| Swiglu { rows, dim })
}

/// Random operations of one kind, with its name.
pub type NamedStrategy = (&'static str, BoxedStrategy<Box<dyn Operation>>);

/// All kinds of operations.
pub fn operations(max: usize) -> Vec<NamedStrategy> {
    fn boxed<O: Operation + 'static>(
        strategy: impl Strategy<Value = O> + 'static,
    ) -> BoxedStrategy<Box<dyn Operation>> {
        strategy.prop_map(|operation| -> Box<dyn Operation> { Box::new(operation) }).boxed()
    }
    vec![
        ("linear", boxed(linear(max))),
        ("linear_gelu", boxed(linear_gelu(max))),
        ("norm", boxed(norm(max))),
        ("add_norm", boxed(norm(max).prop_map(AddNorm))),
        ("attention", boxed(attention(max))),
        ("attention_chunk", boxed(chunked_attention(max))),
        ("rope", boxed(rope(max))),
        ("embedding", boxed(embedding(max))),
        ("position_embedding", boxed(position_embedding(max))),
        ("cross_entropy", boxed(cross_entropy(max))),
        ("vocab_parallel_cross_entropy", boxed(vocab_parallel(max))),
        ("dropout", boxed(dropout(max))),
        ("swiglu", boxed(swiglu(max))),
        ("gelu", boxed((1..max * max).prop_map(|len| Gelu { len }))),
    ]
}
