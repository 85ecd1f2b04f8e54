//! Each rank sends to the next and receives from the previous one. A block is reduced on its first
//! trip around the ring and distributed on its second.
//!
//! Rounds: *n*-1 per phase, 2(*n*-1) for an all-reduce. Bytes sent: (*n*-1)/*n* of the buffer per
//! phase, which is optimal. Each block is reduced once, in ring order, and then copied, so all
//! ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy, copy_round, receive, reduce, send};
use super::{Program, RankContext, equal_blocks, per_rank_blocks};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let ring = RankGroup::all(ctx.ranks, ctx.rank);
    let mut rounds = reduce_scatter_blocks(&ring, own, Input, Output, Output);
    rounds.extend(all_gather_blocks(&ring, own, Output));
    equal_blocks(ctx.ranks, rounds)
}

pub(super) fn reduce_scatter(ctx: &RankContext) -> Option<Program> {
    let ring = RankGroup::all(ctx.ranks, ctx.rank);
    per_rank_blocks(reduce_scatter_blocks(&ring, own, Input, Scratch, Output))
}

pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let ring = RankGroup::all(ctx.ranks, ctx.rank);
    let mut rounds = all_gather_blocks(&ring, own, Input);
    rounds.first_mut()?.push(copy(Input, Output, own(ctx.rank)));
    per_rank_blocks(rounds)
}

/// Block *i* belongs to rank *i*.
fn own(at: u32) -> Range<u32> {
    at..at + 1
}

/// Reduce-scatters: every member gets its block in `last`. Contributions are in `source`; other
/// blocks are reduced in `work`, where each is copied one round before its reduction.
pub(super) fn reduce_scatter_blocks(
    ring: &RankGroup,
    part: impl Fn(u32) -> Range<u32>,
    source: BufferKind,
    work: BufferKind,
    last: BufferKind,
) -> Vec<Round> {
    let n = ring.size();
    let buffer = |at: u32| if at == ring.me { last } else { work };
    // The block reduced in round k; round 0 only copies.
    let reduced = |k: u32| ring.preceding(k + 1);
    let prepared = |at: u32| copy_round(source, buffer(at), part(at)).into_iter().flatten();
    let mut rounds: Vec<Round> = vec![prepared(reduced(1.min(n - 1))).collect()];
    for k in 1..n {
        let (out, into) = (ring.preceding(k), reduced(k));
        let from = if k == 1 { source } else { work };
        let mut round = vec![
            send(ring.rank(ring.me + 1), from, part(out)),
            reduce(ring.rank(ring.preceding(1)), buffer(into), part(into)),
        ];
        if k + 1 < n {
            round.extend(prepared(reduced(k + 1)));
        }
        rounds.push(round);
    }
    rounds
}

/// All-gathers the blocks into the outputs. Each member has its own block in `source`.
pub(super) fn all_gather_blocks(
    ring: &RankGroup,
    part: impl Fn(u32) -> Range<u32>,
    source: BufferKind,
) -> Vec<Round> {
    let round = |k: u32| {
        let from = if k == 0 { source } else { Output };
        vec![
            send(ring.rank(ring.me + 1), from, part(ring.preceding(k))),
            receive(ring.rank(ring.preceding(1)), Output, part(ring.preceding(k + 1))),
        ]
    };
    (0..ring.size() - 1).map(round).collect()
}
