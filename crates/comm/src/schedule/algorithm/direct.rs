//! Direct exchange with every peer, either concurrently or one peer at a time. Nothing is reduced
//! or forwarded.

use super::build::{copy, receive, send};
use super::{Program, RankContext, per_rank_blocks};
use crate::schedule::BufferKind::{Input, Output};
use crate::schedule::ProgramStep;

/// In round *k* each rank sends to the rank *k* after it: one message per direction at a time.
pub(super) fn pairwise(ctx: &RankContext) -> Option<Program> {
    let exchanges = (1..ctx.ranks).map(|k| exchange(ctx, k, ctx.after(k)).to_vec());
    per_rank_blocks([vec![copy_own(ctx)]].into_iter().chain(exchanges).collect())
}

/// All pairs in one round. Each rank starts with a different peer to avoid incast.
pub(super) fn all_to_all(ctx: &RankContext) -> Option<Program> {
    let exchanges = (1..ctx.ranks).flat_map(|k| exchange(ctx, k, ctx.after(k)));
    per_rank_blocks(vec![exchanges.chain([copy_own(ctx)]).collect()])
}

pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let exchanges = (1..ctx.ranks).flat_map(|k| exchange(ctx, k, ctx.rank));
    per_rank_blocks(vec![exchanges.chain([copy_own(ctx)]).collect()])
}

fn copy_own(ctx: &RankContext) -> ProgramStep {
    copy(Input, Output, ctx.own())
}

/// Sends a block to the rank `k` after this one and receives from the rank `k` before it.
fn exchange(ctx: &RankContext, k: u32, block: u32) -> [ProgramStep; 2] {
    let from = ctx.before(k);
    [send(ctx.after(k), Input, block..block + 1), receive(from, Output, from..from + 1)]
}

pub(super) fn gather(ctx: &RankContext) -> Option<Program> {
    if !ctx.is_root() {
        return per_rank_blocks(vec![vec![send(ctx.root, Input, ctx.own())]]);
    }
    let others = (0..ctx.ranks).filter(|&from| from != ctx.root);
    let received = others.map(|from| receive(from, Output, from..from + 1));
    per_rank_blocks(vec![received.chain([copy_own(ctx)]).collect()])
}
