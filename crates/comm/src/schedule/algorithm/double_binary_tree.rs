//! Two binary trees, each for half of the blocks. Inner nodes of one tree are leaves of the other,
//! so that all ranks send and receive about the same amount. Blocks are pipelined (Sanders, Speck
//! and Träff).
//!
//! Rounds: 2 log₂ *n* up, log₂ *n* down, plus one per block of a tree. Bytes sent: about one
//! buffer, two for an all-reduce. A parent reduces its left child before its right child. In an
//! all-reduce the root of a block's tree computes the result and broadcasts it, so all ranks get
//! identical bits.
//!
//! Each message has a time slot, the same on both sides, and a rank processes its messages in the
//! order of these slots. This rules out deadlocks.

use super::build::{RankGroup, copy, receive, reduce as reduced, send};
use super::{Program, RankContext, equal_blocks};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::{ProgramStep, Round};

/// Blocks per tree.
const SEGMENTS: u32 = 8;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let group = RankGroup::all(ctx.ranks, ctx.rank);
    let mut timeline = StepTimeline::default();
    for tree in trees(&group) {
        timeline.up(&tree, Output);
        timeline.down(&tree, 2 * height(group.size()));
    }
    timeline.program()
}

/// The trees span the other ranks; the root sends to the tree roots.
pub(super) fn broadcast(ctx: &RankContext) -> Option<Program> {
    let mut timeline = StepTimeline::default();
    let Some(group) = others(ctx) else {
        for (tree, rank) in tree_roots(ctx) {
            timeline.each_segment(0, |s| send(rank, Output, block(tree, s)));
        }
        return timeline.program();
    };
    for tree in trees(&group) {
        if tree.parent(tree.me).is_none() {
            timeline.each_segment(0, |s| receive(ctx.root, Output, tree.block(s)));
        }
        timeline.down(&tree, 1);
    }
    timeline.program()
}

/// The trees span the other ranks; the root reduces the results of the tree roots.
pub(super) fn reduce(ctx: &RankContext) -> Option<Program> {
    let mut timeline = StepTimeline::default();
    let last = 2 * height(ctx.ranks - 1);
    let Some(group) = others(ctx) else {
        timeline.copies.push(copy(Input, Output, 0..2 * SEGMENTS));
        for (tree, rank) in tree_roots(ctx) {
            timeline.each_segment(last, |s| reduced(rank, Output, block(tree, s)));
        }
        return timeline.program();
    };
    for tree in trees(&group) {
        timeline.up(&tree, Scratch);
        if tree.parent(tree.me).is_none() {
            let from = if tree.is_leaf() { Input } else { Scratch };
            timeline.each_segment(last, |s| send(ctx.root, from, tree.block(s)));
        }
    }
    timeline.program()
}

/// All ranks but the root, if this rank is not the root.
fn others(ctx: &RankContext) -> Option<RankGroup> {
    let after = (1..ctx.ranks).map(|at| (ctx.root + at) % ctx.ranks);
    RankGroup::of(after.collect(), ctx.rank)
}

/// Tree index and rank of the roots of both trees.
fn tree_roots(ctx: &RankContext) -> [(u32, u32); 2] {
    let n = ctx.ranks - 1;
    let rank = |member: u32| (ctx.root + 1 + member) % ctx.ranks;
    let top = 1 << n.ilog2();
    [(0, rank(member(0, top, n))), (1, rank(member(1, top, n)))]
}

fn trees(group: &RankGroup) -> [BinaryTree<'_>; 2] {
    [0, 1].map(|index| BinaryTree { group, index, me: position(index, group.me, group.size()) })
}

/// Position of a member in a tree, from 1. The second tree mirrors the first if `n` is even and
/// shifts it by one if `n` is odd: an even position in one tree is odd in the other.
fn position(tree: u32, member: u32, n: u32) -> u32 {
    match tree {
        0 => member + 1,
        _ if n.is_multiple_of(2) => n - member,
        _ => (member + n - 1) % n + 1,
    }
}

/// Inverse of [`position`].
fn member(tree: u32, position: u32, n: u32) -> u32 {
    match tree {
        0 => position - 1,
        _ if n.is_multiple_of(2) => n - position,
        _ => position % n,
    }
}

fn block(tree: u32, segment: u32) -> std::ops::Range<u32> {
    let at = tree * SEGMENTS + segment;
    at..at + 1
}

/// Height of a tree with `n` nodes.
fn height(n: u32) -> u32 {
    n.ilog2()
}

/// In-order binary tree. Odd positions are leaves; the level of a position is the number of its
/// trailing zero bits.
struct BinaryTree<'a> {
    group: &'a RankGroup,
    index: u32,
    /// This rank's position.
    me: u32,
}

impl BinaryTree<'_> {
    /// Height of a position above the leaf level.
    fn level(position: u32) -> u32 {
        position.trailing_zeros()
    }

    fn parent(&self, position: u32) -> Option<u32> {
        let bit = 1 << Self::level(position);
        let near = (position ^ bit) | (bit << 1);
        // The regular parent is past the right edge; the actual one is further up on the left.
        let parent = if near <= self.group.size() { near } else { position ^ bit };
        (parent > 0).then_some(parent)
    }

    /// Whether this rank has no children.
    fn is_leaf(&self) -> bool {
        self.me % 2 == 1
    }

    fn rank(&self, position: u32) -> u32 {
        self.group.rank(member(self.index, position, self.group.size()))
    }

    fn block(&self, segment: u32) -> std::ops::Range<u32> {
        block(self.index, segment)
    }

    /// This rank's children, each with its side: 0 for left, 1 for right.
    fn children(&self) -> impl Iterator<Item = (u32, u32)> {
        let half = (1 << Self::level(self.me)) / 2;
        let left = (half > 0).then(|| self.me - half);
        let below = (0..Self::level(self.me)).rev().map(|k| self.me + (1 << k));
        let right = below.into_iter().find(|&child| child <= self.group.size());
        left.into_iter().zip([0]).chain(right.into_iter().zip([1]))
    }

    /// Distance to the root.
    fn depth(&self) -> u32 {
        let above = |position: &u32| self.parent(*position);
        std::iter::successors(Some(self.me), above).count() as u32 - 1
    }
}

/// Steps with their time slots, after the first copies. A block advances one level per slot. On the
/// way up, right children are one slot later, because a parent must not reduce the same block from
/// both children at once.
#[derive(Default)]
struct StepTimeline {
    copies: Round,
    steps: Vec<(u32, ProgramStep)>,
}

impl StepTimeline {
    /// One step per segment, in consecutive slots from `start`.
    fn each_segment(&mut self, start: u32, step: impl Fn(u32) -> ProgramStep) {
        self.steps.extend((0..SEGMENTS).map(|s| (start + s, step(s))));
    }

    /// Reduces to the tree's root, in `work`, to which inner nodes copy their contribution.
    fn up(&mut self, tree: &BinaryTree, work: BufferKind) {
        if !tree.is_leaf() {
            let blocks = tree.block(0).start..tree.block(SEGMENTS - 1).end;
            self.copies.push(copy(Input, work, blocks));
        }
        for (child, side) in tree.children() {
            let received = |s| reduced(tree.rank(child), work, tree.block(s));
            self.each_segment(2 * BinaryTree::level(child) + side, received);
        }
        if let Some(parent) = tree.parent(tree.me) {
            let from = if tree.is_leaf() { Input } else { work };
            let side = u32::from(tree.me > parent);
            let sent = |s| send(tree.rank(parent), from, tree.block(s));
            self.each_segment(2 * BinaryTree::level(tree.me) + side, sent);
        }
    }

    /// Broadcasts from the tree's root, beginning at slot `start`.
    fn down(&mut self, tree: &BinaryTree, start: u32) {
        let depth = tree.depth();
        if let Some(parent) = tree.parent(tree.me) {
            let received = |s| receive(tree.rank(parent), Output, tree.block(s));
            self.each_segment(start + depth - 1, received);
        }
        for (child, _) in tree.children() {
            let forwarded = |s| send(tree.rank(child), Output, tree.block(s));
            self.each_segment(start + depth, forwarded);
        }
    }

    /// The copies, then one round per time slot.
    fn program(mut self) -> Option<Program> {
        self.steps.sort_by_key(|(time, _)| *time);
        let slots = self.steps.chunk_by(|(a, _), (b, _)| a == b);
        let rounds = slots.map(|slot| slot.iter().map(|(_, step)| step.clone()).collect());
        equal_blocks(2 * SEGMENTS, [self.copies].into_iter().chain(rounds).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_is_an_inner_node_of_both_trees() {
        for n in 1..300 {
            for me in 0..n {
                let group = RankGroup::all(n, me);
                let trees = trees(&group);
                let inner = trees.iter().filter(|tree| tree.children().next().is_some()).count();
                assert!(inner <= 1, "{me} of {n}");
                for tree in &trees {
                    assert_eq!(member(tree.index, tree.me, n), me);
                    assert!(tree.depth() <= 2 * height(n));
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree() {
        for n in 1..100 {
            let mut roots = 0;
            for me in 0..n {
                let group = RankGroup::all(n, me);
                let tree = BinaryTree { group: &group, index: 0, me: me + 1 };
                assert!(tree.children().all(|(child, _)| tree.parent(child) == Some(me + 1)));
                roots += u32::from(tree.parent(me + 1).is_none());
            }
            assert_eq!(roots, 1);
        }
    }
}
