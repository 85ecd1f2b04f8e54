//! A tree in which member *v*'s parent is *v* without its lowest bit; the root has ⌈log₂ *n*⌉
//! children, and a subtree's members stand next to each other.
//!
//! Rounds: ⌈log₂ *n*⌉ from the root to the last, or back. A parent reduces its children one after the
//! other, the nearest first. In an all-reduce the root makes the value and all get copies of it:
//! all ranks get the same bits.

use std::ops::Range;

use super::build::{Group, around, copied, copy, receive, reduce as reduced, send};
use super::{Program, Seat, parts, shares, whole};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let tree = Group::all(seat.ranks, seat.rank);
    let mut rounds = up(&tree, Place::Input, Place::Output, 0..1);
    rounds.extend(down(&tree, 0..1));
    whole(rounds)
}

pub(super) fn reduce(seat: &Seat) -> Option<Program> {
    let tree = Group::from_root(seat.ranks, seat.rank, seat.root);
    let work = if seat.is_root() { Place::Output } else { Place::Scratch };
    whole(up(&tree, Place::Input, work, 0..1))
}

pub(super) fn broadcast(seat: &Seat) -> Option<Program> {
    whole(down(&Group::from_root(seat.ranks, seat.rank, seat.root), 0..1))
}

pub(super) fn barrier(seat: &Seat) -> Option<Program> {
    let tree = Group::all(seat.ranks, seat.rank);
    let mut rounds = up(&tree, Place::Input, Place::Output, 0..0);
    rounds.extend(down(&tree, 0..0));
    shares(0, rounds)
}

fn parent(v: u32) -> Option<u32> {
    (v > 0).then(|| v & (v - 1))
}

/// The children, the nearest first.
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

/// The first member gets the reduction of all in `work`. All have theirs in `given`, and reduce in
/// `work`.
pub(super) fn up(tree: &Group, given: Place, work: Place, blocks: Range<u32>) -> Vec<Round> {
    let (v, n) = (tree.me, tree.size());
    let leaf = children(v, n).next().is_none();
    let mut rounds = Vec::new();
    if !leaf || v == 0 {
        rounds.extend(copied(given, work, blocks.clone()));
    }
    let child = |c| vec![reduced(tree.rank(c), work, blocks.clone())];
    rounds.extend(children(v, n).map(child));
    let from = if leaf { given } else { work };
    rounds.extend(parent(v).map(|p| vec![send(tree.rank(p), from, blocks.clone())]));
    rounds
}

/// All get what the first member has in the output.
pub(super) fn down(tree: &Group, blocks: Range<u32>) -> Vec<Round> {
    let (v, n) = (tree.me, tree.size());
    let got = parent(v).map(|p| vec![receive(tree.rank(p), Place::Output, blocks.clone())]);
    // The child with the largest subtree first, for it has the longest way to go.
    let child = |c| send(tree.rank(c), Place::Output, blocks.clone());
    let passed = children(v, n).rev().map(child).collect();
    got.into_iter().chain([passed]).collect()
}

/// The parts of a rank's subtree, which may go around the end.
fn parts_of(of: u32, root: u32, n: u32) -> impl Iterator<Item = Range<u32>> {
    let members = subtree(of, n);
    around(root + members.start, members.len() as u32, n)
}

pub(super) fn gather(seat: &Seat) -> Option<Program> {
    let Seat { ranks: n, rank, root, .. } = *seat;
    let tree = Group::from_root(n, rank, root);
    let v = tree.me;
    let runs = |of: u32| parts_of(of, root, n);
    let own = rank..rank + 1;
    if children(v, n).next().is_none() {
        let to = tree.rank(parent(v)?);
        return parts(vec![vec![send(to, Place::Input, own)]]);
    }
    let work = if v == 0 { Place::Output } else { Place::Scratch };
    let got = children(v, n)
        .flat_map(|c| runs(c).map(move |blocks| (c, blocks)))
        .map(|(c, blocks)| receive(tree.rank(c), work, blocks));
    let first = std::iter::once(copy(Place::Input, work, own)).chain(got).collect();
    let to = parent(v).map(|p| tree.rank(p));
    let passed = to.map(|to| runs(v).map(|blocks| send(to, work, blocks)).collect());
    parts([first].into_iter().chain(passed).collect())
}

pub(super) fn scatter(seat: &Seat) -> Option<Program> {
    let Seat { ranks: n, rank, root, .. } = *seat;
    let tree = Group::from_root(n, rank, root);
    let v = tree.me;
    let runs = |of: u32| parts_of(of, root, n);
    let own = rank..rank + 1;
    let from = parent(v).map(|p| tree.rank(p));
    if let Some(from) = from.filter(|_| children(v, n).next().is_none()) {
        return parts(vec![vec![receive(from, Place::Output, own)]]);
    }
    let work = if v == 0 { Place::Input } else { Place::Scratch };
    let got = from.map(|from| runs(v).map(|blocks| receive(from, work, blocks)).collect());
    let passed = children(v, n)
        .rev()
        .flat_map(|c| runs(c).map(move |blocks| (c, blocks)))
        .map(|(c, blocks)| send(tree.rank(c), work, blocks));
    let last = passed.chain([copy(work, Place::Output, own)]).collect();
    parts(got.into_iter().chain([last]).collect())
}
