//! A small model for tests.

use crate::shape::{Family, Shape};

/// A small model of a family.
pub fn shape(family: Family) -> Shape {
    Shape {
        family,
        vocabulary: 13,
        context: 8,
        width: 8,
        layers: 2,
        heads: 2,
        kv_heads: 2,
        feed_forward: 16,
        tied: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_epsilon: 1e-5,
        rope_base: 100.0,
    }
}
