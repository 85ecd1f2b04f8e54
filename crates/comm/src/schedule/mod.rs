//! Collectives as programs: who sends what to whom, in which rounds. Pure data, which can be
//! printed, checked and simulated before it moves a byte.
//!
//! A rank's buffer is cut into blocks: of an all-reduce, reduce or broadcast into equal shares, of
//! the others into the ranks' parts. A round's steps may go on at the same time; the next round
//! begins, on this rank, when they are over.
//!
//! Which blocks a rank has where, by the table at [`crate::Call`]:
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
//! A program does the collective in place, too, where input and output are one memory: a copy from
//! a block of the input to the same of the output is then nothing to do. Only an all-to-all in
//! place needs a copy of its input first. A barrier has no blocks; its messages are empty.
//!
//! [`algorithm`] writes programs, [`check`] proves them right, [`simulate`] says what they cost,
//! [`mod@print`] shows them, [`choose`] chooses, by a table that [`decide`] makes of what was
//! measured.

use std::ops::Range;

pub mod algorithm;
pub mod check;
pub mod choose;
#[cfg(test)]
mod concrete;
pub mod decide;
pub mod print;
pub mod simulate;

pub use algorithm::{Algorithm, program};

/// How a buffer is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// Into so many shares, as equal as it goes.
    Shares(u32),
    /// Into the parts of the ranks: block *i* is rank *i*'s.
    Parts,
}

impl Blocks {
    /// How many blocks there are.
    pub fn count(self, ranks: u32) -> u32 {
        match self {
            Self::Shares(shares) => shares,
            Self::Parts => ranks,
        }
    }
}

/// Where a share of a buffer lies, in elements. The first shares are longer by one if it does not
/// come out even.
pub fn share(elements: usize, shares: u32, index: u32) -> Range<usize> {
    let (shares, index) = (shares.max(1) as usize, index as usize);
    let (each, longer) = (elements / shares, elements % shares);
    let start = each * index + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// Which of a rank's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// What the rank gives; it is not changed. In a collective in place it is the output.
    Input,
    /// What the rank gets.
    Output,
    /// Room of the algorithm's own, cut like the output.
    Scratch,
}

/// Some blocks of a buffer, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Which buffer.
    pub place: Place,
    /// Which blocks.
    pub blocks: Range<u32>,
}

/// What a rank does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends blocks to a rank. Between two ranks what is sent first is received first.
    Send {
        /// To whom.
        to: u32,
        /// What.
        what: Piece,
    },
    /// Receives blocks from a rank.
    Receive {
        /// From whom.
        from: u32,
        /// Where they go.
        into: Piece,
        /// Whether they are reduced with what is there; if not, they replace it.
        reduce: bool,
    },
    /// Copies blocks on the rank itself.
    Copy {
        /// From here.
        from: Piece,
        /// To here.
        to: Piece,
    },
}

/// Steps that may go on at the same time: none of them reads what another writes.
pub type Round = Vec<Step>;

/// What one rank does in a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// How buffers are cut.
    pub blocks: Blocks,
    /// Round after round.
    pub rounds: Vec<Round>,
}

impl Program {
    /// The blocks of scratch room that it uses, from the first to the last.
    pub fn scratch(&self) -> Range<u32> {
        let pieces = self.rounds.iter().flatten().flat_map(Step::writes);
        let used = pieces.filter(|piece| piece.place == Place::Scratch && !piece.blocks.is_empty());
        used.map(|piece| piece.blocks.clone())
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
            .unwrap_or(0..0)
    }
}

impl Step {
    /// What it changes.
    fn writes(&self) -> Option<&Piece> {
        match self {
            Self::Send { .. } => None,
            Self::Receive { into, .. } => Some(into),
            Self::Copy { to, .. } => Some(to),
        }
    }

    /// What it reads.
    fn reads(&self) -> Option<&Piece> {
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
    fn shares_cover_a_buffer_without_gaps() {
        for (elements, shares) in [(0, 3), (1, 3), (7, 3), (9, 3), (5, 1), (1000, 7)] {
            let mut next = 0;
            for index in 0..shares {
                let share = share(elements, shares, index);
                assert_eq!(share.start, next);
                assert!(share.len().abs_diff(elements / shares as usize) <= 1);
                next = share.end;
            }
            assert_eq!(next, elements);
        }
    }
}
