//! Which blocks a rank's buffers have, what they hold initially and what the output must hold at
//! the end, following the table at [`regatta_comm::schedule`].

use std::ops::Range;

use super::rank_set::RankSet;
use regatta_comm::CallKind;
use regatta_comm::schedule::BufferKind::{self, Input, Output, Scratch};

/// Symbolic content of a block: contributions of a set of ranks to one block of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SymbolicValue {
    pub block: u32,
    pub of: RankSet,
}

/// The buffers of one rank in a collective.
#[derive(Clone, Copy)]
pub(super) struct RankBuffers {
    pub kind: CallKind,
    pub ranks: u32,
    pub rank: u32,
    pub root: u32,
    /// Number of blocks of a full buffer.
    pub blocks: u32,
}

impl RankBuffers {
    /// The blocks that the rank has in a buffer.
    pub fn blocks(&self, buffer: BufferKind) -> Range<u32> {
        let (all, own, none) = (0..self.blocks, self.rank..self.rank + 1, 0..0);
        let root = self.rank == self.root;
        match (buffer, self.kind) {
            (_, CallKind::Barrier | CallKind::Send | CallKind::Receive) => none,
            (Scratch, _) => all,
            (Input, CallKind::Broadcast) => none,
            (Input, CallKind::AllGather | CallKind::Gather) => own,
            (Input, CallKind::Scatter) if !root => none,
            (Input, _) => all,
            (Output, CallKind::ReduceScatter | CallKind::Scatter) => own,
            (Output, CallKind::Reduce | CallKind::Gather) if !root => none,
            (Output, _) => all,
        }
    }

    /// Whether an in-place call aliases this input block with the output block.
    pub fn aliased(&self, block: u32) -> bool {
        self.kind != CallKind::AllToAll && self.blocks(Output).contains(&block)
    }

    /// Whether the output is initialized.
    pub fn starts_filled(&self) -> bool {
        self.kind == CallKind::Broadcast && self.rank == self.root
    }

    /// The rank's contribution.
    pub fn own(&self, block: u32) -> SymbolicValue {
        SymbolicValue { block, of: RankSet::range(self.rank..self.rank + 1) }
    }

    /// What an output block must hold at the end.
    pub fn result(&self, block: u32) -> SymbolicValue {
        let (block, of) = match self.kind {
            CallKind::Broadcast | CallKind::Scatter => (block, self.root..self.root + 1),
            CallKind::AllGather | CallKind::Gather => (block, block..block + 1),
            CallKind::AllToAll => (self.rank, block..block + 1),
            _ => (block, 0..self.ranks),
        };
        SymbolicValue { block, of: RankSet::range(of) }
    }

    /// Whether a value has the length of the block it is written to. All-to-all scratch blocks are
    /// assumed to be of equal length.
    pub fn fits(&self, value: &SymbolicValue, buffer: BufferKind, block: u32) -> bool {
        match (self.kind, buffer) {
            (CallKind::AllToAll, Output) => value.block == self.rank && value.of.is_only(block),
            (CallKind::AllToAll, _) => true,
            _ => value.block == block,
        }
    }
}
