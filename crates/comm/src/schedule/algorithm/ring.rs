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
    rounds.extend(all_gather_blocks(&ring, |at| [own(at)], Output));
    equal_blocks(ctx.ranks, rounds)
}

pub(super) fn reduce_scatter(ctx: &RankContext) -> Option<Program> {
    let ring = RankGroup::all(ctx.ranks, ctx.rank);
    per_rank_blocks(reduce_scatter_blocks(&ring, own, Input, Scratch, Output))
}

pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let ring = RankGroup::all(ctx.ranks, ctx.rank);
    let mut rounds = all_gather_blocks(&ring, |at| [own(at)], Input);
    rounds.first_mut()?.push(copy(Input, Output, ctx.own()));
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

/// All-gathers the parts of all members into the outputs. Each member has its own in `source`.
pub(super) fn all_gather_blocks<P: IntoIterator<Item = Range<u32>>>(
    ring: &RankGroup,
    part: impl Fn(u32) -> P,
    source: BufferKind,
) -> Vec<Round> {
    let (to, from) = (ring.rank(ring.me + 1), ring.rank(ring.preceding(1)));
    let round = |k: u32| {
        let buffer = if k == 0 { source } else { Output };
        let sent = part(ring.preceding(k)).into_iter().map(|blocks| send(to, buffer, blocks));
        let received = part(ring.preceding(k + 1)).into_iter();
        sent.chain(received.map(|blocks| receive(from, Output, blocks))).collect()
    };
    (0..ring.size() - 1).map(round).collect()
}
