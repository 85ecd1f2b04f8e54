//! In round *k* each rank forwards all it has to the rank 2^*k* before it. After ⌈log₂ *n*⌉ rounds
//! all ranks have everything, for any *n*. Reductions use the same edges in reverse.
//!
//! Bytes sent: (*n*-1)/*n* of the buffer per phase, as in a ring. Each block is reduced once, along
//! a fixed tree, and then copied, so all ranks get identical bits.

use super::build::{copy, copy_round, receive, reduce as reduced, send, wrapped};
use super::{Program, RankContext, equal_blocks, per_rank_blocks};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let mut rounds = reduce(ctx, Output);
    rounds.extend(gather(ctx));
    equal_blocks(ctx.ranks, rounds)
}

pub(super) fn reduce_scatter(ctx: &RankContext) -> Option<Program> {
    let mut rounds = reduce(ctx, Scratch);
    rounds.extend(copy_round(Scratch, Output, ctx.own()));
    per_rank_blocks(rounds)
}

pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let mut rounds = vec![vec![copy(Input, Output, ctx.own())]];
    rounds.extend(gather(ctx));
    per_rank_blocks(rounds)
}

pub(super) fn barrier(ctx: &RankContext) -> Option<Program> {
    let round =
        |far: u32| vec![send(ctx.before(far), Output, 0..0), receive(ctx.after(far), Output, 0..0)];
    equal_blocks(0, distances(ctx.ranks).map(round).collect())
}

/// 1, 2, 4, … below `ranks`.
fn distances(ranks: u32) -> impl DoubleEndedIterator<Item = u32> {
    (0..ranks.next_power_of_two().ilog2()).map(|k| 1 << k)
}

/// All-gathers the blocks; each rank has its own block in the output.
fn gather(ctx: &RankContext) -> Vec<Round> {
    let round = |far: u32| {
        // Rank r has the blocks r..r+far and receives the next `far`, as far as there are any.
        let length = far.min(ctx.ranks - far);
        let (to, from) = (ctx.before(far), ctx.after(far));
        let sent = wrapped(ctx.rank, length, ctx.ranks).map(|blocks| send(to, Output, blocks));
        let received = wrapped(from, length, ctx.ranks);
        sent.chain(received.map(|blocks| receive(from, Output, blocks))).collect()
    };
    distances(ctx.ranks).map(round).collect()
}

/// Reduce-scatters into `work`, which also holds the partial results of other blocks.
fn reduce(ctx: &RankContext, work: BufferKind) -> Vec<Round> {
    let round = |far: u32| {
        let length = far.min(ctx.ranks - far);
        let (to, from) = (ctx.after(far), ctx.before(far));
        let sent = wrapped(to, length, ctx.ranks).map(|blocks| send(to, work, blocks));
        let received = wrapped(ctx.rank, length, ctx.ranks);
        sent.chain(received.map(|blocks| reduced(from, work, blocks))).collect()
    };
    let first = copy_round(Input, work, 0..ctx.ranks);
    first.into_iter().chain(distances(ctx.ranks).rev().map(round)).collect()
}
