//! Runs the programs of all ranks with names instead of numbers, and so proves them right, for any
//! data and any sizes of blocks.
//!
//! A block holds the contributions of a set of ranks to one block of the result. A message moves
//! only while both sides are in its rounds, as if nothing were buffered: what does not wait in a
//! circle here does not with buffers either.

mod matching;
mod room;
mod rounds;
mod run;
mod set;
#[cfg(test)]
mod tests;

pub(super) use matching::{Message, Messages};

use super::{Place, Program};
use crate::Kind;

/// Where a program is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the program of rank {rank}, round {round}: {problem}")]
pub struct CheckError {
    /// Whose program.
    pub rank: u32,
    /// In which round, from 0 on; the number of rounds if it is about the end.
    pub round: usize,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Ranks cut their buffers differently.
    #[error("its blocks are not those of rank 0")]
    OtherBlocks,
    /// It names a rank that cannot be meant.
    #[error("rank {peer} is not there, or not for this")]
    NoSuchPeer {
        /// The rank.
        peer: u32,
    },
    /// A block is used that the rank has not got in this place, or may not change.
    #[error("block {block} of the {place} is not there to be {used}")]
    NoSuchBlock {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
        /// Read or written.
        used: &'static str,
    },
    /// Copied are more or fewer blocks than there is room for.
    #[error("{from} blocks are copied to {to}")]
    CopyLength {
        /// So many.
        from: usize,
        /// To so many.
        to: usize,
    },
    /// Two steps of a round write one block.
    #[error("two steps write block {block} of the {place}")]
    WrittenTwice {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
    },
    /// A step reads what another step of its round writes.
    #[error("one step reads block {block} of the {place} while another one writes it")]
    ReadWhileWritten {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
    },
    /// Something is sent that nobody receives.
    #[error("what is sent to rank {to} is never received")]
    NotReceived {
        /// By whom.
        to: u32,
    },
    /// Something is received that nobody sends.
    #[error("what should come from rank {from} is never sent")]
    NotSent {
        /// By whom.
        from: u32,
    },
    /// Sender and receiver disagree about a message.
    #[error("{sent} blocks come from rank {from}, {wanted} are expected")]
    MessageLength {
        /// From whom.
        from: u32,
        /// So many are sent.
        sent: usize,
        /// So many are wanted.
        wanted: usize,
    },
    /// Ranks wait for each other in a circle.
    #[error("it waits for rank {peer}, which waits in its round {there} for others")]
    Stuck {
        /// The other rank.
        peer: u32,
        /// Its round.
        there: usize,
    },
    /// A block is read in which nothing is yet.
    #[error("block {block} of the {place} is read before anything is in it")]
    Unset {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
    },
    /// The input is read when, in place, it is no more.
    #[error("block {block} of the input is read; in place it is overwritten by then")]
    Overwritten {
        /// Which.
        block: u32,
    },
    /// A contribution is reduced into a block twice.
    #[error("in block {block} of the {place} the contribution of rank {of} is counted twice")]
    CountedTwice {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
        /// Whose contribution.
        of: u32,
    },
    /// Data of one block comes to where another belongs.
    #[error("block {block} of the {place} gets what belongs to block {given}")]
    WrongBlock {
        /// Where.
        place: Place,
        /// Which.
        block: u32,
        /// What it gets.
        given: u32,
    },
    /// At the end a block of the output is not what it should be.
    #[error("at the end block {block} of the output holds {holds}, not {wanted}")]
    WrongResult {
        /// Which.
        block: u32,
        /// Whose contributions it has.
        holds: String,
        /// Whose it should have.
        wanted: String,
    },
    /// A rank leaves a barrier before it can know that all have come.
    #[error("it leaves the barrier having heard of {heard}")]
    LeavesEarly {
        /// Of whom it knows.
        heard: String,
    },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

/// Proves that the programs, one for each rank, do the collective: in place and not, whatever the
/// timing, without hanging.
pub fn check(kind: Kind, root: u32, programs: &[Program]) -> Result<(), CheckError> {
    if kind.has_root() && root as usize >= programs.len() {
        return wrong(0, 0, Problem::NoSuchPeer { peer: root });
    }
    rounds::check(kind, root, programs)?;
    let messages = Messages::match_all(programs)?;
    run::Run::new(kind, root, programs, &messages).all()
}

fn wrong<T>(rank: u32, round: usize, problem: Problem) -> Result<T, CheckError> {
    Err(CheckError { rank, round, problem })
}
