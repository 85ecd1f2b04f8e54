//! Collectives as programs: who sends what to whom, in which rounds. Pure data, which can be
//! printed, checked and simulated before it moves a byte.
//!
//! A rank's buffer is cut into blocks: of an all-reduce, reduce or broadcast into equal shares, of
//! the others into the ranks' parts. A round's steps may go on at the same time; the next round
//! begins, on this rank, when they are over.

use std::ops::Range;

/// How a buffer is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// Into so many shares, as equal as it goes.
    Shares(u32),
    /// Into the parts of the ranks: block *i* is rank *i*'s.
    Parts,
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
