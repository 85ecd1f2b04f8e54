//! Verifies programs by symbolic execution of all ranks, for any data and any block sizes.
//!
//! A block holds the contributions of a set of ranks to one block of the result. A message moves
//! only while both ranks are in the rounds that name it, as if nothing were buffered: a program
//! without a deadlock here has none with buffering either.

mod matching;
mod rank_buffers;
mod rank_set;
mod rounds;
mod symbolic;
mod tests;

pub(super) use matching::{ScheduledMessage, ScheduledMessages};

use regatta_comm::CallKind;
use regatta_comm::schedule::{BufferKind, Program};

/// A defect in a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("program of rank {rank}, round {round}: {problem}")]
pub struct CheckError {
    /// The rank whose program is wrong.
    pub rank: u32,
    /// The round, from 0; the number of rounds if the defect shows at the end.
    pub round: usize,
    /// The defect.
    pub problem: Defect,
}

/// A defect of a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Ranks cut their buffers differently.
    #[error("block layout differs from rank 0")]
    BlockCountMismatch,
    /// A peer or root that does not exist or is the rank itself.
    #[error("invalid peer: rank {peer}")]
    InvalidPeer { peer: u32 },
    /// An access to a block that this buffer does not have, or a write to the input.
    #[error("block {block} of the {buffer:?} cannot be {used}")]
    InvalidBlock { buffer: BufferKind, block: u32, used: &'static str },
    /// Source and destination of a copy differ in length.
    #[error("copy of {from} blocks to {to} blocks")]
    CopyLength { from: usize, to: usize },
    /// Two steps of a round write the same block.
    #[error("two steps write block {block} of the {buffer:?}")]
    WrittenTwice { buffer: BufferKind, block: u32 },
    /// A step reads a block that another step of the round writes.
    #[error("block {block} of the {buffer:?} is read and written in the same round")]
    ReadWhileWritten { buffer: BufferKind, block: u32 },
    /// A send without a matching receive.
    #[error("the send to rank {to} has no matching receive")]
    NotReceived { to: u32 },
    /// A receive without a matching send.
    #[error("the receive from rank {from} has no matching send")]
    NotSent { from: u32 },
    /// Sender and receiver disagree about the length of a message.
    #[error("rank {from} sends {sent} blocks, {wanted} are expected")]
    MessageLength { from: u32, sent: usize, wanted: usize },
    /// A circular wait.
    #[error("deadlock: waits for rank {peer}, which waits in its round {peer_round}")]
    Deadlock { peer: u32, peer_round: usize },
    /// A read of a block that was never written.
    #[error("block {block} of the {buffer:?} is read before it is written")]
    Uninitialized { buffer: BufferKind, block: u32 },
    /// A read of an input block that is already overwritten in an in-place call.
    #[error("block {block} of the input is read after it was overwritten in place")]
    Overwritten { block: u32 },
    /// A contribution is reduced into a block twice.
    #[error("block {block} of the {buffer:?} counts the contribution of rank {of} twice")]
    DuplicateContribution { buffer: BufferKind, block: u32, of: u32 },
    /// A block receives data of another block.
    #[error("block {block} of the {buffer:?} receives data of block {from_block}")]
    WrongBlock { buffer: BufferKind, block: u32, from_block: u32 },
    /// A wrong result.
    #[error("at the end block {block} of the output holds {holds} instead of {wanted}")]
    WrongResult { block: u32, holds: String, wanted: String },
    /// A rank leaves a barrier before all ranks have entered it.
    #[error("leaves the barrier after only {seen} entered it")]
    EarlyBarrierExit { seen: String },
}

/// Verifies that the programs, one per rank, implement the collective: in place and out of place,
/// for any timing, without deadlock.
pub fn check(kind: CallKind, root: u32, programs: &[Program]) -> Result<(), CheckError> {
    if kind.has_root() && root as usize >= programs.len() {
        return wrong(0, 0, Defect::InvalidPeer { peer: root });
    }
    rounds::check(kind, root, programs)?;
    let messages = ScheduledMessages::match_all(programs)?;
    symbolic::SymbolicRun::new(kind, root, programs, &messages).all()
}

fn wrong<T>(rank: u32, round: usize, problem: Defect) -> Result<T, CheckError> {
    Err(CheckError { rank, round, problem })
}
