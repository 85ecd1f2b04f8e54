//! Collectives as programs: which rank sends which blocks to which rank in which round. Programs
//! are pure data.
//!
//! A rank's buffer is cut into blocks: equal blocks for all-reduce, reduce and broadcast, one block
//! per rank otherwise. The steps of a round may run concurrently; a rank starts its next round when
//! they have completed.
//!
//! Blocks per buffer, following the table at [`crate::Call`]:
//!
//! | kind | input | output |
//! |---|---|---|
//! | all-reduce | all | all |
//! | reduce | all | all at the root, else none |
//! | broadcast | none | all; the root's is read |
//! | all-gather | its own | all |
//! | reduce-scatter | all | its own |
//! | gather | its own | all at the root, else none |
//! | scatter | all at the root, else none | its own |
//! | all-to-all | all: *i* is for rank *i* | all: *i* is from rank *i* |
//!
//! A program also works in place, where input and output are the same memory: a copy from an input
//! block to the same output block is then a no-op. Only an in-place all-to-all copies its input
//! first. A barrier has no blocks; its messages are empty.
//!
//! [`algorithm`] builds programs, and [`algorithm_table`] picks one from a table that [`fit_table`]
//! derives from measurements. `tests/integration/schedule` verifies them and simulates their cost.

use std::ops::Range;

pub mod algorithm;
pub mod algorithm_table;
pub mod fit_table;

pub use algorithm::{Algorithm, program};

/// How a buffer is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// This many blocks, equal to within one element.
    Equal(u32),
    /// One block per rank: block *i* belongs to rank *i*.
    PerRank,
}

impl Blocks {
    /// Number of blocks.
    pub fn count(self, ranks: u32) -> u32 {
        match self {
            Self::Equal(shares) => shares,
            Self::PerRank => ranks,
        }
    }
}

/// The elements of one of `blocks` equal blocks. The first blocks are one element longer if the
/// division leaves a remainder.
pub fn equal_block(elements: usize, blocks: u32, index: u32) -> Range<usize> {
    let (blocks, index) = (blocks.max(1) as usize, index as usize);
    let (each, longer) = (elements / blocks, elements % blocks);
    let start = each * index + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// One of a rank's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// The rank's contribution; read-only. Aliases the output in an in-place collective.
    Input,
    /// The rank's result.
    Output,
    /// Temporary buffer, cut like the output.
    Scratch,
}

/// Consecutive blocks of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The buffer.
    pub buffer: BufferKind,
    /// The blocks.
    pub blocks: Range<u32>,
}

/// One step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramStep {
    /// Sends blocks to a rank. Messages between two ranks keep their order.
    Send {
        /// Destination rank.
        to: u32,
        /// Blocks to send.
        what: BlockRange,
    },
    /// Receives blocks from a rank.
    Receive {
        /// Source rank.
        from: u32,
        /// Destination blocks.
        into: BlockRange,
        /// Whether to reduce into the destination instead of overwriting it.
        reduce: bool,
    },
    /// Copies blocks locally.
    Copy {
        /// Source blocks.
        from: BlockRange,
        /// Destination blocks.
        to: BlockRange,
    },
}

/// Steps that may run concurrently: no step reads or writes a block that another writes.
pub type Round = Vec<ProgramStep>;

/// The program of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// How buffers are cut.
    pub blocks: Blocks,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}

impl Program {
    /// The smallest range that covers all scratch blocks in use.
    pub fn scratch(&self) -> Range<u32> {
        let pieces = self.rounds.iter().flatten().flat_map(ProgramStep::writes);
        let used = pieces.filter(|r| r.buffer == BufferKind::Scratch && !r.blocks.is_empty());
        used.map(|range| range.blocks.clone())
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
            .unwrap_or(0..0)
    }
}

impl ProgramStep {
    /// The blocks that the step writes.
    pub fn writes(&self) -> Option<&BlockRange> {
        match self {
            Self::Send { .. } => None,
            Self::Receive { into, .. } => Some(into),
            Self::Copy { to, .. } => Some(to),
        }
    }

    /// The blocks that the step reads.
    pub fn reads(&self) -> Option<&BlockRange> {
        match self {
            Self::Send { what, .. } => Some(what),
            Self::Receive { into, reduce, .. } => reduce.then_some(into),
            Self::Copy { from, .. } => Some(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_blocks_cover_the_buffer_without_gaps() {
        for (elements, shares) in [(0, 3), (1, 3), (7, 3), (9, 3), (5, 1), (1000, 7)] {
            let mut next = 0;
            for index in 0..shares {
                let share = equal_block(elements, shares, index);
                assert_eq!(share.start, next);
                assert!(share.len().abs_diff(elements / shares as usize) <= 1);
                next = share.end;
            }
            assert_eq!(next, elements);
        }
    }
}
