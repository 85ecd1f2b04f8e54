//! Building blocks of programs.

use std::ops::Range;

use crate::schedule::{BlockRange, BufferKind, ProgramStep, Round};

/// An ordered set of ranks.
pub(super) struct RankGroup {
    members: Vec<u32>,
    /// This rank's index in the group.
    pub me: u32,
}

impl RankGroup {
    /// The group of these ranks, if it contains `rank`.
    pub fn of(members: Vec<u32>, rank: u32) -> Option<Self> {
        let me = members.iter().position(|&member| member == rank)? as u32;
        Some(Self { members, me })
    }

    pub fn all(ranks: u32, rank: u32) -> Self {
        Self { members: (0..ranks).collect(), me: rank }
    }

    /// All ranks, rotated so that the root is first.
    pub fn from_root(ranks: u32, rank: u32, root: u32) -> Self {
        let members = (0..ranks).map(|at| (root + at) % ranks).collect();
        Self { members, me: (rank + ranks - root) % ranks }
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The rank at an index, modulo the size.
    pub fn rank(&self, at: u32) -> u32 {
        self.members[(at % self.size()) as usize]
    }

    /// The index `by` positions before this rank's, modulo the size.
    pub fn preceding(&self, by: u32) -> u32 {
        (self.me + self.size() - by % self.size()) % self.size()
    }
}

pub(super) fn send(to: u32, buffer: BufferKind, blocks: Range<u32>) -> ProgramStep {
    ProgramStep::Send { to, what: BlockRange { buffer, blocks } }
}

pub(super) fn receive(from: u32, buffer: BufferKind, blocks: Range<u32>) -> ProgramStep {
    ProgramStep::Receive { from, into: BlockRange { buffer, blocks }, reduce: false }
}

pub(super) fn reduce(from: u32, buffer: BufferKind, blocks: Range<u32>) -> ProgramStep {
    ProgramStep::Receive { from, into: BlockRange { buffer, blocks }, reduce: true }
}

pub(super) fn copy(from: BufferKind, to: BufferKind, blocks: Range<u32>) -> ProgramStep {
    let from = BlockRange { buffer: from, blocks: blocks.clone() };
    ProgramStep::Copy { from, to: BlockRange { buffer: to, blocks } }
}

/// A round with one copy, unless there is nothing to copy.
pub(super) fn copy_round(from: BufferKind, to: BufferKind, blocks: Range<u32>) -> Option<Round> {
    (from != to && !blocks.is_empty()).then(|| vec![copy(from, to, blocks)])
}

/// `length` blocks from `start` on, modulo `count`: one or two ranges.
pub(super) fn wrapped(start: u32, length: u32, count: u32) -> impl Iterator<Item = Range<u32>> {
    let start = start % count;
    let end = (start + length).min(count);
    let rest = 0..length - (end - start);
    [start..end, rest].into_iter().filter(|blocks| !blocks.is_empty())
}
