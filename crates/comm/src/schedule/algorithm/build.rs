//! What programs are made of.

use std::ops::Range;

use crate::schedule::{Piece, Place, Round, Step};

/// Ranks that do something together, in an order of their own.
pub(super) struct Group {
    members: Vec<u32>,
    /// This rank's place among them.
    pub me: u32,
}

impl Group {
    /// These ranks, `rank` being one of them.
    pub fn of(members: Vec<u32>, rank: u32) -> Option<Self> {
        let me = members.iter().position(|&member| member == rank)? as u32;
        Some(Self { members, me })
    }

    /// All ranks.
    pub fn all(ranks: u32, rank: u32) -> Self {
        Self { members: (0..ranks).collect(), me: rank }
    }

    /// All ranks, from the root on and round.
    pub fn from_root(ranks: u32, rank: u32, root: u32) -> Self {
        let members = (0..ranks).map(|at| (root + at) % ranks).collect();
        Self { members, me: (rank + ranks - root) % ranks }
    }

    /// How many they are.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The rank at a place, counted round.
    pub fn rank(&self, at: u32) -> u32 {
        self.members[(at % self.size()) as usize]
    }

    /// The place so many before this rank's, counted round.
    pub fn back(&self, by: u32) -> u32 {
        (self.me + self.size() - by % self.size()) % self.size()
    }
}

pub(super) fn send(to: u32, place: Place, blocks: Range<u32>) -> Step {
    Step::Send { to, what: Piece { place, blocks } }
}

pub(super) fn receive(from: u32, place: Place, blocks: Range<u32>) -> Step {
    Step::Receive { from, into: Piece { place, blocks }, reduce: false }
}

pub(super) fn reduce(from: u32, place: Place, blocks: Range<u32>) -> Step {
    Step::Receive { from, into: Piece { place, blocks }, reduce: true }
}

pub(super) fn copy(from: Place, to: Place, blocks: Range<u32>) -> Step {
    let from = Piece { place: from, blocks: blocks.clone() };
    Step::Copy { from, to: Piece { place: to, blocks } }
}

/// A round that copies, if there is something to copy.
pub(super) fn copied(from: Place, to: Place, blocks: Range<u32>) -> Option<Round> {
    (from != to && !blocks.is_empty()).then(|| vec![copy(from, to, blocks)])
}

/// `length` blocks of `count` from `start` on, counted round: one or two pieces.
pub(super) fn around(start: u32, length: u32, count: u32) -> impl Iterator<Item = Range<u32>> {
    let start = start % count;
    let end = (start + length).min(count);
    let rest = 0..length - (end - start);
    [start..end, rest].into_iter().filter(|blocks| !blocks.is_empty())
}
