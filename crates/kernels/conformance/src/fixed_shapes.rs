//! Shapes that kernels specialise on, and their neighbours.

use regatta_device::ops::{AttentionDropout, AttentionShape, LinearShape, Norm};
use regatta_device::random::DropoutMask;

use crate::attention::{CausalAttention, Rope};
use crate::attention_chunks::SplitCase;
use crate::embedding_loss::{
    CrossEntropy, Embedding, PositionEmbedding, VocabParallelCrossEntropy,
};
use crate::formulas::FlatParams;
use crate::gradient_check::Operation;
use crate::layers::{Dropout, Gelu, Linear, LinearGelu, Swiglu};
use crate::norms::{AddNorm, NormLayer};
use crate::pinned_copies::PinnedBlocks;

type Operations = Vec<Box<dyn Operation>>;

/// Vocabularies of GPT-2, as it is and padded.
const VOCABS: [usize; 2] = [50_257, 50_304];

/// Rows, inputs and outputs: multiples of eight, as fast GEMMs need, and odd ones.
const LINEAR_SHAPES: [[usize; 3]; 8] = [
    [8, 8, 8],
    [128, 256, 384],
    [1, 768, 768],
    [16, 1024, 24],
    [64, 768, 8],
    [33, 127, 255],
    [257, 129, 65],
    [24, 136, 1],
];

fn linear_shape([rows, inputs, outputs]: [usize; 3]) -> LinearShape {
    LinearShape { rows, inputs, outputs }
}

/// Linear layers, with and without bias, and an output layer.
pub fn linear() -> Operations {
    let mut all: Operations = Vec::new();
    for shape in LINEAR_SHAPES.map(linear_shape) {
        for bias in [false, true] {
            let accumulate = shape.rows % 2 == 0;
            all.push(Box::new(Linear { shape, bias, accumulate, logits: false }));
        }
    }
    let shape = linear_shape([5, 64, VOCABS[0]]);
    all.push(Box::new(Linear { shape, bias: false, accumulate: false, logits: true }));
    all
}

/// Linear layers with GELU.
pub fn linear_gelu() -> Operations {
    let shapes = LINEAR_SHAPES.map(linear_shape).into_iter();
    let both = shapes.flat_map(|shape| [false, true].map(|bias| LinearGelu { shape, bias }));
    both.map(|operation| -> Box<dyn Operation> { Box::new(operation) }).collect()
}

/// Norms of the hidden sizes of common models, of others, and of more rows than a grid has blocks.
pub fn norm() -> Operations {
    let mut all: Operations = Vec::new();
    let sizes = [768, 1024, 2048, 4096].map(|dim| (37, dim));
    for (rows, dim) in sizes.into_iter().chain([(1, 768), (5, 1023), (3, 4100), (3000, 64)]) {
        for norm in [Norm::Layer { eps: 1e-5 }, Norm::Rms { eps: 1e-6 }] {
            let is_layer = matches!(norm, Norm::Layer { .. });
            let layer = NormLayer { norm, rows, dim, bias: is_layer, dx_copy: true };
            all.push(Box::new(layer));
            all.push(Box::new(AddNorm(NormLayer { dx_copy: false, ..layer })));
            all.push(Box::new(AddNorm(NormLayer { bias: !is_layer, ..layer })));
        }
    }
    all
}

/// Attention of common head dimensions. Sequences are shorter than a block, as long and longer.
pub fn attention() -> Operations {
    let mut all: Operations = Vec::new();
    for head_dim in [64, 128] {
        for seq_len in [1, 33, 64, 200, 257] {
            let shape = AttentionShape { batch: 2, seq_len, heads: 2, kv_heads: 2, head_dim };
            all.push(Box::new(CausalAttention { shape, dropout: None }));
            let shape = AttentionShape { kv_heads: 1, ..shape };
            let dropout = Some(shard_dropout(shape));
            all.push(Box::new(CausalAttention { shape, dropout }));
        }
    }
    all
}

/// Dropout of the last heads and tokens of longer sequences, with indices beyond 32 bits.
fn shard_dropout(shape: AttentionShape) -> AttentionDropout {
    let mask = DropoutMask { p: 0.1, key: 0x0123_4567_89ab_cdef, offset: (1 << 32) - 1000 };
    let full = AttentionDropout::new(mask, 3 * shape.heads, shape.seq_len + 9);
    full.shard([0, 2 * shape.heads, 9, 0])
}

/// Shapes of a key/value cache.
pub fn decode_attention() -> Vec<AttentionShape> {
    let shape =
        |(seq_len, head_dim)| AttentionShape { batch: 1, seq_len, heads: 6, kv_heads: 2, head_dim };
    [(1, 64), (257, 64), (1025, 64), (200, 128)].map(shape).to_vec()
}

/// Splits of sequences among context-parallel ranks.
pub fn attention_chunks() -> Vec<SplitCase> {
    let case = |seq_len, head_dim, has_dropout: bool| {
        let shape = AttentionShape { batch: 1, seq_len, heads: 4, kv_heads: 2, head_dim };
        let dropout = has_dropout.then(|| shard_dropout(shape));
        SplitCase { shape, splits: vec![0.25, 0.5, 0.8], dropout }
    };
    vec![case(128, 64, false), case(200, 64, true), case(130, 128, false)]
}

/// RoPE of common head dimensions.
pub fn rope() -> Operations {
    let mut all: Operations = Vec::new();
    for (seq_len, head_dim) in [(1, 64), (200, 64), (257, 128)] {
        let shape = AttentionShape { batch: 2, seq_len, heads: 4, kv_heads: 2, head_dim };
        all.push(Box::new(Rope { shape, theta: 10_000.0, seed: 3 }));
    }
    all
}

/// Embeddings: few tokens that repeat, and a large vocabulary, whole and sharded.
pub fn embedding() -> Operations {
    let repeated = Embedding { rows: 2000, vocab: 3, first: 0, local_vocab: 3, dim: 768, seed: 1 };
    let large = Embedding {
        rows: 300,
        vocab: VOCABS[1],
        first: 0,
        local_vocab: VOCABS[1],
        dim: 24,
        seed: 2,
    };
    let shard = Embedding { first: VOCABS[1] / 4, local_vocab: VOCABS[1] / 4, ..large };
    let odd = Embedding { dim: 771, rows: 70, vocab: 40, first: 9, local_vocab: 20, seed: 4 };
    let positions =
        PositionEmbedding { batch: 5, seq_len: 100, max_positions: 60, dim: 768, seed: 5 };
    vec![
        Box::new(repeated),
        Box::new(Embedding { vocab: 1, local_vocab: 1, dim: 64, ..repeated }),
        Box::new(large),
        Box::new(shard),
        Box::new(odd),
        Box::new(positions),
        Box::new(PositionEmbedding { dim: 129, ..positions }),
    ]
}

/// Cross-entropies of large vocabularies.
pub fn cross_entropy() -> Operations {
    let mut all: Operations = Vec::new();
    let padding = VOCABS[1] - VOCABS[0];
    for (vocab, padding) in [(VOCABS[0], 0), (VOCABS[0], padding), (VOCABS[1], 0)] {
        let full = CrossEntropy { rows: 5, vocab, padding, seed: 6 };
        all.push(Box::new(full));
        for split in [vocab / 2, 1] {
            all.push(Box::new(VocabParallelCrossEntropy { full, split }));
        }
    }
    all
}

/// Cross-entropies for logits whose exponentials overflow.
pub fn large_logits() -> Operations {
    let full = CrossEntropy { rows: 9, vocab: 3001, padding: 7, seed: 7 };
    vec![Box::new(full), Box::new(VocabParallelCrossEntropy { full, split: 1000 })]
}

/// Activation functions and dropout.
pub fn activation() -> Operations {
    let mask = DropoutMask { p: 0.1, key: 0xfeed_beef_0bad_cafe, offset: (1 << 32) - 50_000 };
    let dropout = Dropout { len: 100_003, mask, residual: false };
    vec![
        Box::new(Gelu { len: 100_000 }),
        Box::new(Gelu { len: 65_537 }),
        Box::new(Swiglu { rows: 33, dim: 2048 }),
        Box::new(Swiglu { rows: 70, dim: 683 }),
        Box::new(dropout),
        Box::new(Dropout { residual: true, ..dropout }),
    ]
}

/// Lengths beyond one wave of thread blocks, and around vector widths.
pub fn lens() -> Vec<usize> {
    vec![4096, 4097, 99_999, 1_000_003]
}

/// Parameters with more ranges of weight decay than fit into the arguments of a kernel.
pub fn flat_params() -> Vec<FlatParams> {
    let params = |len, parts| FlatParams { len, parts, steps: 2 };
    vec![params(999_999, 1), params(1_000_002, 60), params(1_048_577, 300)]
}

/// Blocks of several lengths, more and fewer than device buffers.
pub fn pinned_blocks() -> Vec<PinnedBlocks> {
    [(1, 7), (2, 64), (8, 1), (8, 3001)].map(|(blocks, len)| PinnedBlocks { blocks, len }).into()
}
