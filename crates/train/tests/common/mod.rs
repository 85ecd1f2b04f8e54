//! What tests of the same training under different splits have in common.

use std::ops::Range;

use regatta_train::optimizer::AdamW;
use regatta_train::random;
use regatta_train::step::{Plan, Rule};

/// Kinds of tokens.
#[allow(dead_code, reason = "not every test needs all of it")]
pub const KINDS: u64 = 13;

/// A step over so many tokens.
pub fn plan(step: u64, tokens: usize, dropout: f32, recompute: bool) -> Plan {
    let adamw = AdamW {
        rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        decay: 0.1,
        step: step + 1,
        scale: 1.0,
    };
    let (rule, tokens) = (Rule::AdamW(adamw), tokens as u64);
    Plan { step, tokens, rule, clip: 1.0, dropout, seed: 3, recompute }
}

/// Some sequences of a step, each of so many tokens: letters that follow each other, from random ones
/// on, and the same shifted.
#[allow(dead_code, reason = "not every test needs all of it")]
pub fn tokens(length: usize, step: u64, sequences: Range<usize>, shift: u64) -> Vec<u32> {
    let one = |sequence: usize| {
        let start = random::mix(step << 32 | sequence as u64);
        (0..length as u64).map(move |i| ((start % KINDS + 5 * (i + shift)) % KINDS) as u32)
    };
    sequences.flat_map(one).collect()
}
