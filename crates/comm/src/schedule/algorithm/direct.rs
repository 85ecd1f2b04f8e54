//! Direct exchange with every peer, either concurrently or one peer at a time. Nothing is reduced
//! or forwarded.

use super::build::{copy, receive, send};
use super::{Program, RankContext, per_rank_blocks};
use crate::schedule::BufferKind::{Input, Output};
use crate::schedule::ProgramStep;

/// In round *k* each rank sends to the rank *k* after it: one message per direction at a time.
pub(super) fn pairwise(ctx: &RankContext) -> Option<Program> {
    let RankContext { ranks, rank, .. } = *ctx;
    let mut rounds = vec![vec![copy(Input, Output, rank..rank + 1)]];
    rounds.extend((1..ranks).map(|k| exchange(ctx, k).to_vec()));
    per_rank_blocks(rounds)
}

/// All pairs in one round. Each rank starts with a different peer to avoid incast.
pub(super) fn all_to_all(ctx: &RankContext) -> Option<Program> {
    let RankContext { ranks, rank, .. } = *ctx;
    let exchanges = (1..ranks).flat_map(|k| exchange(ctx, k));
    copy_own_then(rank, exchanges)
}

/// One round that copies the own block and runs the other steps.
fn copy_own_then(rank: u32, steps: impl Iterator<Item = ProgramStep>) -> Option<Program> {
    let own = copy(Input, Output, rank..rank + 1);
    per_rank_blocks(vec![std::iter::once(own).chain(steps).collect()])
}

fn exchange(ctx: &RankContext, k: u32) -> [ProgramStep; 2] {
    let RankContext { ranks, rank, .. } = *ctx;
    let (to, from) = ((rank + k) % ranks, (rank + ranks - k) % ranks);
    [send(to, Input, to..to + 1), receive(from, Output, from..from + 1)]
}

pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let RankContext { ranks, rank, .. } = *ctx;
    let peers = (1..ranks).flat_map(|k| {
        let (to, from) = ((rank + k) % ranks, (rank + ranks - k) % ranks);
        [send(to, Input, rank..rank + 1), receive(from, Output, from..from + 1)]
    });
    copy_own_then(rank, peers)
}

pub(super) fn gather(ctx: &RankContext) -> Option<Program> {
    let RankContext { ranks, rank, root, .. } = *ctx;
    let own = rank..rank + 1;
    if !ctx.is_root() {
        return per_rank_blocks(vec![vec![send(root, Input, own)]]);
    }
    let others = (0..ranks).filter(|&from| from != root);
    let received = others.map(|from| receive(from, Output, from..from + 1));
    copy_own_then(rank, received)
}

pub(super) fn scatter(ctx: &RankContext) -> Option<Program> {
    let RankContext { ranks, rank, root, .. } = *ctx;
    let own = rank..rank + 1;
    if !ctx.is_root() {
        return per_rank_blocks(vec![vec![receive(root, Output, own)]]);
    }
    let others = (0..ranks).filter(|&to| to != root);
    let sends = others.map(|to| send(to, Input, to..to + 1));
    copy_own_then(rank, sends)
}
