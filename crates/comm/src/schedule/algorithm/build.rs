//! Building blocks of programs.

use std::ops::Range;

use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::{BlockRange, Program, ProgramStep, Round};

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

/// All-reduce of a rank that only sends its data to its leader and receives the result.
pub(super) fn follow(leader: u32, source: BufferKind, blocks: Range<u32>) -> Vec<Round> {
    let contribution = vec![send(leader, source, blocks.clone())];
    vec![contribution, vec![receive(leader, Output, blocks)]]
}

/// All-reduce of a rank and its followers. `active` returns the rounds between the leaders, given
/// the buffer of this leader's contribution.
pub(super) fn lead(
    followers: &[u32],
    source: BufferKind,
    blocks: Range<u32>,
    active: impl FnOnce(BufferKind) -> Vec<Round>,
) -> Vec<Round> {
    if followers.is_empty() {
        return active(source);
    }
    let mut rounds = Vec::from_iter(copy_round(source, Output, blocks.clone()));
    rounds.extend(followers.iter().map(|&from| vec![reduce(from, Output, blocks.clone())]));
    rounds.extend(active(Output));
    rounds.push(followers.iter().map(|&to| send(to, Output, blocks.clone())).collect());
    rounds
}

/// The same messages and copies in the opposite direction and order, with input and output swapped.
pub(super) fn reversed(program: Program) -> Program {
    let swapped = |range: BlockRange| {
        let buffer = match range.buffer {
            Input => Output,
            Output => Input,
            Scratch => Scratch,
        };
        BlockRange { buffer, ..range }
    };
    let step = |step| match step {
        ProgramStep::Send { to, what } => {
            ProgramStep::Receive { from: to, into: swapped(what), reduce: false }
        }
        ProgramStep::Receive { from, into, .. } => {
            ProgramStep::Send { to: from, what: swapped(into) }
        }
        ProgramStep::Copy { from, to } => {
            ProgramStep::Copy { from: swapped(to), to: swapped(from) }
        }
    };
    let round = |round: Round| round.into_iter().rev().map(step).collect();
    Program { rounds: program.rounds.into_iter().rev().map(round).collect(), ..program }
}

/// `length` blocks from `start` on, modulo `count`: one or two ranges.
pub(super) fn wrapped(start: u32, length: u32, count: u32) -> impl Iterator<Item = Range<u32>> {
    let start = start % count;
    let end = (start + length).min(count);
    let rest = 0..length - (end - start);
    [start..end, rest].into_iter().filter(|blocks| !blocks.is_empty())
}
