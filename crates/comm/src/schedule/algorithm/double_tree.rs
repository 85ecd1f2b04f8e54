//! Two binary trees, each for half of the blocks: who passes on in one is a leaf in the other, so
//! that all send and receive about as much. The blocks go one behind the other (Sanders, Speck and
//! Träff).
//!
//! Rounds: 2 log₂ *n* up, log₂ *n* down, and one for each block of a tree; bytes sent: about the buffer once, twice for
//! an all-reduce. A parent reduces its left child before its right one. In an all-reduce the root of
//! a block's tree makes its value and all get copies: all ranks get the same bits.
//!
//! Each message has a time, the same for both sides, and a rank does its messages in the order of
//! their times. So nobody waits in a circle.

use super::build::{Group, copied, copy, receive, reduce as reduced, send};
use super::{Program, Seat, shares};
use crate::schedule::{Place, Round, Step};

/// The blocks of one tree.
const SEGMENTS: u32 = 8;

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let group = Group::all(seat.ranks, seat.rank);
    let mut line = Timeline::default();
    let trees = trees(&group);
    for tree in &trees {
        line.up(tree, Place::Output);
        line.down(tree, 2 * tree.height());
    }
    let first = trees.iter().flat_map(|tree| tree.prepared(Place::Output)).collect();
    shares(2 * SEGMENTS, [first].into_iter().chain(line.rounds()).collect())
}

/// The trees are of the others; the root gives to their roots.
pub(super) fn broadcast(seat: &Seat) -> Option<Program> {
    let mut line = Timeline::default();
    match others(seat) {
        Some(group) => {
            for tree in trees(&group) {
                if tree.parent(tree.me).is_none() {
                    let got = |s| receive(seat.root, Place::Output, tree.block(s));
                    line.each_segment(|s| s, got);
                }
                line.down(&tree, 1);
            }
        }
        None => {
            for (tree, rank) in tree_roots(seat) {
                let given = |s| send(rank, Place::Output, block(tree, s));
                line.each_segment(|s| s, given);
            }
        }
    }
    shares(2 * SEGMENTS, line.rounds())
}

/// The trees are of the others; the root gets what their roots have.
pub(super) fn reduce(seat: &Seat) -> Option<Program> {
    let mut line = Timeline::default();
    let Some(group) = others(seat) else {
        let last = 2 * height(seat.ranks - 1);
        for (tree, rank) in tree_roots(seat) {
            let got = |s| reduced(rank, Place::Output, block(tree, s));
            line.each_segment(|s| last + s, got);
        }
        let first = copied(Place::Input, Place::Output, 0..2 * SEGMENTS);
        return shares(2 * SEGMENTS, first.into_iter().chain(line.rounds()).collect());
    };
    let trees = trees(&group);
    let first = trees.iter().flat_map(|tree| tree.prepared(Place::Scratch)).collect();
    for tree in &trees {
        line.up(tree, Place::Scratch);
        if tree.parent(tree.me).is_none() {
            let from = if tree.is_leaf(tree.me) { Place::Input } else { Place::Scratch };
            let given = |s| send(seat.root, from, tree.block(s));
            line.each_segment(|s| 2 * tree.height() + s, given);
        }
    }
    shares(2 * SEGMENTS, [first].into_iter().chain(line.rounds()).collect())
}

/// The ranks without the root, if this rank is one of them.
fn others(seat: &Seat) -> Option<Group> {
    let after = (1..seat.ranks).map(|at| (seat.root + at) % seat.ranks);
    Group::of(after.collect(), seat.rank)
}

/// The roots of the two trees of the others, as the root sees them.
fn tree_roots(seat: &Seat) -> [(u32, u32); 2] {
    let n = seat.ranks - 1;
    let rank = |member: u32| (seat.root + 1 + member) % seat.ranks;
    let top = 1 << n.ilog2();
    [(0, rank(member(0, top, n))), (1, rank(member(1, top, n)))]
}

fn trees(group: &Group) -> [Tree<'_>; 2] {
    [0, 1].map(|index| Tree { group, index, me: position(index, group.me, group.size()) })
}

/// Where a member stands in a tree, from 1 on. The second tree is the first in a mirror or, if the
/// number is odd, moved on by one: who stands at an even place here stands at an odd one there.
fn position(tree: u32, member: u32, n: u32) -> u32 {
    match tree {
        0 => member + 1,
        _ if n.is_multiple_of(2) => n - member,
        _ => (member + n - 1) % n + 1,
    }
}

/// Who stands at a position: the other way round.
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

/// The levels below the root of a tree of `n`.
fn height(n: u32) -> u32 {
    n.ilog2()
}

/// A binary tree whose members stand in their order from left to right. Odd positions are leaves;
/// above them are those that can be halved once, above these twice, and so on.
struct Tree<'a> {
    group: &'a Group,
    index: u32,
    /// This rank's position.
    me: u32,
}

impl Tree<'_> {
    fn height(&self) -> u32 {
        height(self.group.size())
    }

    /// How far above the lowest leaves a position is.
    fn level(position: u32) -> u32 {
        position.trailing_zeros()
    }

    fn parent(&self, position: u32) -> Option<u32> {
        let bit = 1 << Self::level(position);
        let near = (position ^ bit) | (bit << 1);
        // Where the tree ends on the right, the next above is further up on the left.
        let parent = if near <= self.group.size() { near } else { position ^ bit };
        (parent > 0).then_some(parent)
    }

    fn left(position: u32) -> Option<u32> {
        let half = (1 << Self::level(position)) / 2;
        (half > 0).then_some(position - half)
    }

    fn right(&self, position: u32) -> Option<u32> {
        let below = (0..Self::level(position)).rev().map(|k| position + (1 << k));
        below.into_iter().find(|&child| child <= self.group.size())
    }

    fn is_leaf(&self, position: u32) -> bool {
        position % 2 == 1
    }

    fn rank(&self, position: u32) -> u32 {
        self.group.rank(member(self.index, position, self.group.size()))
    }

    fn block(&self, segment: u32) -> std::ops::Range<u32> {
        block(self.index, segment)
    }

    /// What this rank copies first, to reduce it with what its children have.
    fn prepared(&self, work: Place) -> Option<Step> {
        let blocks = self.block(0).start..self.block(SEGMENTS - 1).end;
        (!self.is_leaf(self.me)).then(|| copy(Place::Input, work, blocks))
    }

    /// This rank's children, each with whether it is the right one.
    fn children(&self) -> impl Iterator<Item = (u32, u32)> {
        let left = Self::left(self.me).map(|child| (child, 0));
        left.into_iter().chain(self.right(self.me).map(|child| (child, 1)))
    }

    /// Whether this rank is the right child of its parent.
    fn side(&self) -> u32 {
        self.parent(self.me).map_or(0, |parent| u32::from(self.me > parent))
    }

    /// How many are above this rank.
    fn depth(&self) -> u32 {
        let above = |position: &u32| self.parent(*position);
        std::iter::successors(Some(self.me), above).count() as u32 - 1
    }
}

/// Steps with their times. A block moves on in every time. Only on the way up right children come
/// a time after left ones, for a parent must not reduce a block of both at once.
#[derive(Default)]
struct Timeline {
    steps: Vec<(u32, Step)>,
}

impl Timeline {
    fn each_segment(&mut self, time: impl Fn(u32) -> u32, step: impl Fn(u32) -> Step) {
        self.steps.extend((0..SEGMENTS).map(|s| (time(s), step(s))));
    }

    /// What this rank does that the tree's root gets the reduction of all, made in `work`.
    fn up(&mut self, tree: &Tree, work: Place) {
        for (child, side) in tree.children() {
            let got = |s| reduced(tree.rank(child), work, tree.block(s));
            self.each_segment(|s| 2 * Tree::level(child) + side + s, got);
        }
        if let Some(parent) = tree.parent(tree.me) {
            let from = if tree.is_leaf(tree.me) { Place::Input } else { work };
            let given = |s| send(tree.rank(parent), from, tree.block(s));
            self.each_segment(|s| 2 * Tree::level(tree.me) + tree.side() + s, given);
        }
    }

    /// What this rank does that all get what the root has, the first block at time `start`.
    fn down(&mut self, tree: &Tree, start: u32) {
        let depth = tree.depth();
        if let Some(parent) = tree.parent(tree.me) {
            let got = |s| receive(tree.rank(parent), Place::Output, tree.block(s));
            self.each_segment(|s| start + depth - 1 + s, got);
        }
        for (child, _) in tree.children() {
            let passed = |s| send(tree.rank(child), Place::Output, tree.block(s));
            self.each_segment(|s| start + depth + s, passed);
        }
    }

    /// The steps of each time as a round.
    fn rounds(mut self) -> Vec<Round> {
        self.steps.sort_by_key(|(time, _)| *time);
        let same = self.steps.chunk_by(|(a, _), (b, _)| a == b);
        same.map(|round| round.iter().map(|(_, step)| step.clone()).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_within_both_trees() {
        for n in 1..300 {
            for me in 0..n {
                let group = Group::all(n, me);
                let trees = trees(&group);
                let inner = trees.iter().filter(|tree| tree.children().next().is_some()).count();
                assert!(inner <= 1, "{me} of {n}");
                for tree in &trees {
                    assert_eq!(member(tree.index, tree.me, n), me);
                    assert!(tree.depth() <= 2 * tree.height());
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree() {
        for n in 1..100 {
            let mut roots = 0;
            for me in 0..n {
                let group = Group::all(n, me);
                let tree = Tree { group: &group, index: 0, me: me + 1 };
                assert!(tree.children().all(|(child, _)| tree.parent(child) == Some(me + 1)));
                roots += u32::from(tree.parent(me + 1).is_none());
            }
            assert_eq!(roots, 1);
        }
    }
}
