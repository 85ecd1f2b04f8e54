//! The memory that a training takes, told before it is taken. No I/O.

use std::fmt;

use thiserror::Error;

use crate::config::{Memory, Offload, Plan};
use crate::cpu::Precision;
use crate::shape::{Block, Shape};

/// Bytes of a parameter, its gradient and what the optimizer remembers of it: four numbers of 32
/// bits.
const STATE: u128 = 16;

/// Bytes that a rank needs at least; what else it takes is little beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, gradients and the optimizer's state.
    pub state: u64,
    /// What a forward pass leaves for the backward pass.
    pub activations: u64,
}

impl Footprint {
    /// Of a rank that has the whole model and works on so many tokens at once.
    pub fn of(shape: &Shape, tokens: usize, precision: Precision, recompute: bool) -> Self {
        let numbers: u128 = shape.blocks().iter().map(|block| Block::room(block) as u128).sum();
        let layer = layer_bytes(shape, precision);
        let stream = 4 * shape.width as u128;
        let layers = shape.layers as u128;
        let a_token = match recompute {
            true => layers * stream + layer,
            false => layers * (stream + layer),
        };
        Self { state: bytes(STATE * numbers), activations: bytes(a_token * tokens as u128) }
    }

    /// What is left of it for each of the ranks that share it, at least: stages and the blocks that
    /// come and go take more.
    pub fn shared(self, plan: &Plan, offload: &Offload) -> Self {
        let mesh = &plan.mesh;
        let [tp, cp, pp, shard] = [mesh.tp, mesh.cp, mesh.pp, mesh.shard].map(|n| n as u64);
        let number = self.state / 4 / (tp * pp);
        let part = |from: usize| if plan.zero >= from { number / shard } else { number };
        let moments = if offload.optimizer == Memory::Disk { 0 } else { 2 * part(1) };
        let parameters = if offload.parameters == Memory::Disk { 0 } else { part(3) };
        Self {
            state: moments + part(2) + parameters,
            activations: self.activations / (tp * cp * pp),
        }
    }

    /// Whether so many ranks have room in so much memory.
    pub fn check(&self, ranks: usize, free: u64) -> Result<(), TooLarge> {
        let each = self.state.saturating_add(self.activations);
        let needed = each.saturating_mul(ranks as u64);
        let Self { state, activations } = *self;
        match needed <= free {
            true => Ok(()),
            false => Err(TooLarge { ranks, needed, state, activations, free }),
        }
    }
}

/// What a layer leaves for a token, beside the stream before it.
fn layer_bytes(shape: &Shape, precision: Precision) -> u128 {
    let half = match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    };
    let [width, heads] = [shape.width, shape.heads].map(|n| n as u128);
    let (qkv, up, inner) = (shape.qkv_width(), shape.up_width(), shape.feed_forward);
    // Normed, queries with keys and values, what heads have found; two statistics, a sum a head,
    // and the stream behind it.
    let attention = half * (2 * width + qkv as u128) + 4 * (2 + heads + width);
    let feed_forward = half * (width + (up + inner) as u128) + 4 * 2;
    if shape.attends() { attention + feed_forward } else { feed_forward }
}

fn bytes(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// A training that memory cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{ranks} of this node's ranks need {}, and {} of its memory are free: each has {} of parameters, \
     gradients and optimizer state (model.layers, model.width, model.vocabulary) and {} of \
     activations (train.micro_batch, train.recompute); make these smaller, share them \
     (parallel.zero, parallel.tp, parallel.pp) or start fewer ranks, or try it all the same with \
     train.check_memory=false",
    Size(*needed), Size(*free), Size(*state), Size(*activations)
)]
pub struct TooLarge {
    /// Ranks that share the memory.
    pub ranks: usize,
    /// Bytes that they need at least.
    pub needed: u64,
    /// Of these, each for its state.
    pub state: u64,
    /// And for its activations.
    pub activations: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// Bytes, for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.0 as f64 / (1u64 << 30) as f64;
        match gib < 1.0 {
            true => write!(f, "{:.1} MiB", gib * 1024.0),
            false => write!(f, "{gib:.1} GiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn shape(preset: &str, words: &[&str]) -> Shape {
        let first = Some(config::First::Preset(preset.to_owned()));
        config::resolve(first, words).unwrap().config.shape(65).unwrap()
    }

    #[test]
    fn it_is_what_is_counted_by_hand() {
        let of = |recompute| {
            let shape = shape("gpt2", &["layers=2", "width=32", "heads=2", "vocabulary=65"]);
            Footprint::of(&shape, 10, Precision::F32, recompute)
        };
        // Two layers of: stream 32, normed 32, qkv 96, heads 32, sums 2, statistics 2, stream 32;
        // normed 32, statistics 2, up 128, active 128.
        let layer = 32 + 96 + 32 + 2 + 2 + 32 + 32 + 2 + 128 + 128;
        assert_eq!(of(false).activations, 10 * 4 * 2 * (32 + layer));
        assert_eq!(of(true).activations, 10 * 4 * (2 * 32 + layer));
        let gpt2 = Footprint::of(&shape("gpt2", &[]), 1, Precision::Bf16, false);
        assert!(gpt2.state.abs_diff(16 * 124_439_808) < 16 * 10_000, "{gpt2:?}");
        let none = Footprint::of(&shape("mlp", &[]), 0, Precision::F32, false);
        assert_eq!(none.activations, 0);
    }

    #[test]
    fn what_ranks_share_counts_once() {
        let whole = Footprint { state: 16 << 20, activations: 8 << 20 };
        let left = |words: &[&str], ranks| {
            let config = config::resolve(None, words).unwrap().config;
            let plan = config.validate(ranks).unwrap();
            let Footprint { state, activations } = whole.shared(&plan, &config.offload);
            (state >> 20, activations >> 20)
        };
        assert_eq!(left(&[], 2), (16, 8));
        assert_eq!(left(&["tp=2", "batch=4"], 4), (8, 4));
        assert_eq!(left(&["pp=2", "cp=2", "batch=4"], 4), (8, 2));
        assert_eq!(left(&["zero=1"], 2), (12, 8));
        assert_eq!(left(&["zero=2"], 2), (10, 8));
        assert_eq!(left(&["zero=3"], 2), (8, 8));
        assert_eq!(left(&["zero=3", "shard=2", "batch=4"], 4), (8, 8));
        assert_eq!(left(&["offload.optimizer=disk"], 1), (8, 8));
        assert_eq!(left(&["offload.optimizer=disk", "offload.parameters=disk"], 1), (4, 8));
    }

    #[test]
    fn what_has_no_room_is_refused_with_sizes_and_keys() {
        let footprint = Footprint { state: 3 << 30, activations: 1 << 29 };
        let both = 7 << 30;
        assert_eq!(footprint.check(2, both), Ok(()));
        let error = footprint.check(2, both - 1).unwrap_err().to_string();
        for part in ["2 of this node's ranks need 7.0 GiB", "3.0 GiB of par", "512.0 MiB of act"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // The largest that can be asked for is a number, too.
        let all = ["layers=10000", "width=1048576", "heads=1", "context=1048576"];
        let most = Footprint::of(&shape("gpt2", &all), usize::MAX, Precision::F32, false);
        assert!(most.check(usize::MAX, u64::MAX - 1).is_err(), "{most:?}");
    }
}
