//! Rabenseifner's all-reduce: recursive halving (reduce-scatter), then recursive doubling
//! (all-gather). If *n* is not a power of two, some ranks first fold their data into a neighbour.
//!
//! Rounds: 2 log₂ *n*, plus two with folding. Bytes sent: 2(*p*-1)/*p* of the buffer for *p* active
//! ranks, plus one buffer for folded pairs. Each block is reduced once and then copied, so all
//! ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy_round, receive, reduce, send};
use super::power_of_two::{FoldRole, PowerOfTwoFold};
use super::{Program, RankContext, equal_blocks};
use crate::schedule::BufferKind::{Input, Output};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let group = RankGroup::all(ctx.ranks, ctx.rank);
    let fold = PowerOfTwoFold::new(&group);
    let all = 0..fold.workers();
    let rounds = match fold.role() {
        FoldRole::Folded(worker) => {
            vec![vec![send(worker, Input, all.clone())], vec![receive(worker, Output, all.clone())]]
        }
        FoldRole::Active { index, folded_rank } => {
            let mut rounds: Vec<Round> = Vec::new();
            rounds.extend(copy_round(Input, Output, all.clone()));
            rounds.extend(folded_rank.map(|rank| vec![reduce(rank, Output, all.clone())]));
            rounds.extend(worker(&fold, index));
            rounds.extend(folded_rank.map(|rank| vec![send(rank, Output, all.clone())]));
            rounds
        }
    };
    equal_blocks(all.end, rounds)
}

fn worker(fold: &PowerOfTwoFold, index: u32) -> Vec<Round> {
    let distances = (0..fold.workers().ilog2()).map(|k| 1 << k);
    let halving = distances.clone().rev().map(|far| {
        let (rank, other) = (fold.worker(index ^ far), index ^ far);
        vec![send(rank, Output, run(other, far)), reduce(rank, Output, run(index, far))]
    });
    let doubling = distances.map(|far| {
        let (rank, other) = (fold.worker(index ^ far), index ^ far);
        vec![send(rank, Output, run(index, far)), receive(rank, Output, run(other, far))]
    });
    halving.chain(doubling).collect()
}

/// The aligned range of `length` blocks (a power of two) that contains `index`.
fn run(index: u32, length: u32) -> Range<u32> {
    let start = index & !(length - 1);
    start..start + length
}
