//! Binomial tree: the parent of member *v* is *v* with its lowest bit cleared. The root has ⌈log₂
//! *n*⌉ children, and the members of a subtree are contiguous.
//!
//! Rounds: ⌈log₂ *n*⌉ per direction. A parent reduces its children one by one, nearest first. In an
//! all-reduce the root computes the result and broadcasts it, so all ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy, copy_round, receive, reduce as reduced, send, wrapped};
use super::{Program, RankContext, equal_blocks, per_rank_blocks};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    equal_blocks(1, all_reduce_rounds(ctx, 0..1))
}

pub(super) fn reduce(ctx: &RankContext) -> Option<Program> {
    let tree = RankGroup::from_root(ctx.ranks, ctx.rank, ctx.root);
    let work = if ctx.is_root() { Output } else { Scratch };
    equal_blocks(1, reduce_to_root(&tree, Input, work, 0..1))
}

pub(super) fn broadcast(ctx: &RankContext) -> Option<Program> {
    let tree = RankGroup::from_root(ctx.ranks, ctx.rank, ctx.root);
    equal_blocks(1, broadcast_from_root(&tree, 0..1))
}

pub(super) fn barrier(ctx: &RankContext) -> Option<Program> {
    equal_blocks(0, all_reduce_rounds(ctx, 0..0))
}

fn all_reduce_rounds(ctx: &RankContext, blocks: Range<u32>) -> Vec<Round> {
    let tree = RankGroup::all(ctx.ranks, ctx.rank);
    let mut rounds = reduce_to_root(&tree, Input, Output, blocks.clone());
    rounds.extend(broadcast_from_root(&tree, blocks));
    rounds
}

fn parent(v: u32) -> Option<u32> {
    (v > 0).then(|| v & (v - 1))
}

/// The children, nearest first.
fn children(v: u32, n: u32) -> impl DoubleEndedIterator<Item = u32> {
    let bits = if v == 0 { u32::BITS - 1 } else { v.trailing_zeros() };
    let last = (0..bits).take_while(move |k| v + (1 << k) < n).count() as u32;
    (0..last).map(move |k| v + (1 << k))
}

/// The members of a subtree.
fn subtree(v: u32, n: u32) -> Range<u32> {
    let length = if v == 0 { n } else { 1 << v.trailing_zeros() };
    v..(v + length).min(n)
}

/// Reduces to the first member, into its `work` buffer. Every member contributes its `source`
/// buffer.
pub(super) fn reduce_to_root(
    tree: &RankGroup,
    source: BufferKind,
    work: BufferKind,
    blocks: Range<u32>,
) -> Vec<Round> {
    let (v, n) = (tree.me, tree.size());
    let leaf = children(v, n).next().is_none();
    let mut rounds = Vec::new();
    if !leaf || v == 0 {
        rounds.extend(copy_round(source, work, blocks.clone()));
    }
    let child = |c| vec![reduced(tree.rank(c), work, blocks.clone())];
    rounds.extend(children(v, n).map(child));
    let from = if leaf { source } else { work };
    rounds.extend(parent(v).map(|p| vec![send(tree.rank(p), from, blocks.clone())]));
    rounds
}

/// Broadcasts the first member's output.
pub(super) fn broadcast_from_root(tree: &RankGroup, blocks: Range<u32>) -> Vec<Round> {
    let (v, n) = (tree.me, tree.size());
    let received = parent(v).map(|p| vec![receive(tree.rank(p), Output, blocks.clone())]);
    // Largest subtree first, because it has the longest path.
    let child = |c| send(tree.rank(c), Output, blocks.clone());
    let forwarded = children(v, n).rev().map(child).collect();
    received.into_iter().chain([forwarded]).collect()
}

/// Gathers the blocks of each subtree, which may wrap around the end.
pub(super) fn gather(ctx: &RankContext) -> Option<Program> {
    let n = ctx.ranks;
    let tree = RankGroup::from_root(n, ctx.rank, ctx.root);
    let runs = |of: u32| {
        let members = subtree(of, n);
        wrapped(ctx.root + members.start, members.len() as u32, n)
    };
    let to = parent(tree.me).map(|p| tree.rank(p));
    if let Some(to) = to.filter(|_| children(tree.me, n).next().is_none()) {
        return per_rank_blocks(vec![vec![send(to, Input, ctx.own())]]);
    }
    let work = if ctx.is_root() { Output } else { Scratch };
    let received = children(tree.me, n)
        .flat_map(|c| runs(c).map(move |blocks| (c, blocks)))
        .map(|(c, blocks)| receive(tree.rank(c), work, blocks));
    let first = std::iter::once(copy(Input, work, ctx.own())).chain(received).collect();
    let forwarded = to.map(|to| runs(tree.me).map(|blocks| send(to, work, blocks)).collect());
    per_rank_blocks([first].into_iter().chain(forwarded).collect())
}
