//! The event file.
//!
//! ```text
//! file   = magic (8 bytes) block*
//! block  = length (u32) checksum (u32) payload
//! payload = record*
//! record = tag (1 byte) fields (LEB128 integers; text with its length)
//! ```
//!
//! Lengths and checksums (CRC-32 of the payload) are little-endian. Times and numbers of operations are
//! differences to those of the operation before in the same block, so that blocks are independent: a
//! process that is killed loses its last block at most. The first record is a [`Record::Process`], names
//! and communicators come before the operations that refer to them, and [`Record::End`] is the last
//! record of a process that exited normally.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{Damage, ReadEnd, read};
pub use encode::BlockEncoder;

use crate::operation::{ClockSync, Communicator, Name, Operation, Process};

/// First bytes of an event file. The last one is the version of the format.
pub const MAGIC: [u8; 8] = *b"regevts\x01";
/// Extension of event files.
pub const EXTENSION: &str = "events";
/// Bytes before the payload of a block.
const BLOCK_HEADER: usize = 8;
/// Longest payload of a block.
const MAX_PAYLOAD: usize = 1 << 20;

/// A record of an event file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The process that writes the file.
    Process(Process),
    /// A name that operations refer to.
    Name(Name, String),
    /// A communicator that operations refer to.
    Communicator(Communicator),
    /// The clocks at about one instant. Device times after it are converted with it.
    Clock(ClockSync),
    /// An operation.
    Operation(Operation),
    /// Events lost so far: the ring was full, or the file could not be written.
    Lost(Lost),
    /// The process exited normally.
    End,
}

/// What was lost, counted from the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Raw events that did not fit into the ring; the operations they belong to lack them, or are
    /// missing.
    pub events: u64,
    /// Operations that could not be written to the file.
    pub operations: u64,
    /// Operations that had not ended when there were too many of them in flight, and are stored without
    /// an end.
    pub unfinished: u64,
}

impl Lost {
    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Tags of records.
mod tag {
    pub(super) const PROCESS: u8 = 1;
    pub(super) const NAME: u8 = 2;
    pub(super) const COMMUNICATOR: u8 = 3;
    pub(super) const CLOCK: u8 = 4;
    pub(super) const OPERATION: u8 = 5;
    pub(super) const LOST: u8 = 6;
    pub(super) const END: u8 = 7;
}

/// Flags of an operation.
mod flag {
    /// Two bits: the clock.
    pub(super) const TIMING: u8 = 0b11;
    pub(super) const CAPTURED: u8 = 1 << 2;
    pub(super) const PEER: u8 = 1 << 3;
    pub(super) const NETWORK: u8 = 1 << 4;
    pub(super) const COMPLETED: u8 = 1 << 5;
    pub(super) const ALL: u8 = TIMING | CAPTURED | PEER | NETWORK | COMPLETED;
}

/// The operation before, to which differences refer.
#[derive(Debug, Clone, Copy, Default)]
struct Previous {
    index: u64,
    sequence: u64,
    enqueued: u64,
    start: u64,
}

impl Previous {
    fn of(operation: &Operation) -> Self {
        let Operation { index, sequence, enqueued, start, .. } = *operation;
        Self { index, sequence, enqueued, start }
    }
}
