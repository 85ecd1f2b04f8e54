//! A small model for tests.

use crate::shape::{Family, ModelShape};

/// A small model of a family.
pub fn shape(family: Family) -> ModelShape {
    ModelShape {
        family,
        vocab_size: 13,
        seq_len: 8,
        hidden_size: 8,
        num_layers: 2,
        num_heads: 2,
        num_kv_heads: 2,
        intermediate_size: 16,
        tie_embeddings: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_eps: 1e-5,
        rope_theta: 100.0,
    }
}
