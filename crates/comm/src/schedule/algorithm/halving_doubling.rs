//! Rabenseifner's all-reduce: recursive halving (reduce-scatter), then recursive doubling
//! (all-gather). If *n* is not a power of two, some ranks first fold their data into a neighbour.
//!
//! Rounds: 2 log₂ *n*, plus two with folding. Bytes sent: 2(*p*-1)/*p* of the buffer for *p* active
//! ranks, plus one buffer for folded pairs. Each block is reduced once and then copied, so all
//! ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy_round, receive, reduce, send};
use super::power_of_two::PowerOfTwo;
use super::{Program, RankContext, equal_blocks};
use crate::schedule::BufferKind::{Input, Output};

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let group = RankGroup::all(ctx.ranks, ctx.rank);
    let active = PowerOfTwo::new(&group);
    let all = 0..active.size();
    let rounds = active.all_reduce(Input, all.clone(), |source| {
        let exchange = |far: u32| {
            let other = active.index ^ far;
            (active.rank(other), run(active.index, far), run(other, far))
        };
        let halving = active.distances().rev().map(exchange).map(|(partner, own, others)| {
            vec![send(partner, Output, others), reduce(partner, Output, own)]
        });
        let doubling = active.distances().map(exchange).map(|(partner, own, others)| {
            vec![send(partner, Output, own), receive(partner, Output, others)]
        });
        copy_round(source, Output, all.clone()).into_iter().chain(halving).chain(doubling).collect()
    });
    equal_blocks(all.end, rounds)
}

/// The aligned range of `length` blocks (a power of two) that contains `index`.
fn run(index: u32, length: u32) -> Range<u32> {
    let start = index & !(length - 1);
    start..start + length
}
