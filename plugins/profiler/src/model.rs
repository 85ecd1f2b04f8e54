//! The events of all interface versions.

use std::ffi::c_char;

use crate::handle::Handle;

/// Longest text that is read: names are much shorter.
const MAX_TEXT: usize = 64;

/// A text of NCCL, which may be NULL.
pub type Text<'a> = Option<&'a [u8]>;

/// Reads a text of NCCL, up to a limit.
///
/// # Safety
/// `text` is NULL or points to a C string that outlives the result.
#[inline]
pub unsafe fn text<'a>(text: *const c_char) -> Text<'a> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by the caller's contract the string ends with a zero byte, and is not read beyond it.
    unsafe {
        let length = libc::strnlen(text, MAX_TEXT);
        Some(std::slice::from_raw_parts(text.cast(), length))
    }
}

/// A communicator, as NCCL describes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommunicatorFacts<'a> {
    /// The same number on all ranks; 0 if unknown.
    pub id: u64,
    /// Its name.
    pub name: Text<'a>,
    /// The number of nodes; 0 if unknown.
    pub nodes: i32,
    /// The number of ranks; 0 if unknown.
    pub ranks: i32,
    /// This process's rank.
    pub rank: i32,
}

/// An event that starts.
#[derive(Debug, Clone, Copy)]
pub enum Descriptor<'a> {
    /// A group of operations.
    Group,
    /// A call of the API.
    Api {
        /// The data type of the call.
        dtype: Text<'a>,
        /// Whether it is captured into a CUDA graph.
        captured: bool,
    },
    /// A collective that was enqueued.
    Collective(Collective<'a>),
    /// A collective of the copy engines that was enqueued.
    CopyEngine(Collective<'a>),
    /// A point-to-point operation that was enqueued.
    Message(Message<'a>),
    /// An operation's kernel started to run on a channel.
    Channel {
        /// The operation.
        parent: Handle,
        /// When, on the device clock; 0 if unknown.
        device_time: u64,
        /// Whether stopping the event is the only sign of the end.
        ends_at_stop: bool,
    },
    /// A network transfer was appended to those of its connection.
    Transfer {
        /// The operation.
        parent: Handle,
        /// The process of the operation.
        pid: i32,
        /// The channel.
        channel: u8,
        /// The peer.
        peer: i32,
        /// Whether it sends.
        sends: bool,
        /// Whether this is the only sign of the transfer's start.
        starts_at_once: bool,
    },
    /// A step of a network transfer.
    Step {
        /// The transfer.
        parent: Handle,
        /// Its number.
        step: i32,
    },
    /// An event that is not recorded.
    Other,
}

/// A collective.
#[derive(Debug, Clone, Copy)]
pub struct Collective<'a> {
    /// The call of the API, if it is known.
    pub api: Handle,
    /// Facts that come with each operation, in version 3.
    pub communicator: Option<CommunicatorFacts<'a>>,
    /// NCCL's sequence number, per kind.
    pub sequence: u64,
    /// NCCL's name of the kind.
    pub function: Text<'a>,
    /// The element count.
    pub count: u64,
    /// The root.
    pub root: i32,
    /// The data type.
    pub dtype: Text<'a>,
    /// The number of channels; 0 if unknown.
    pub channels: u8,
    /// The algorithm.
    pub algorithm: Text<'a>,
    /// The protocol.
    pub protocol: Text<'a>,
}

/// A point-to-point operation.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The call of the API, if it is known.
    pub api: Handle,
    /// Facts that come with each operation, in version 3.
    pub communicator: Option<CommunicatorFacts<'a>>,
    /// NCCL's name of the kind.
    pub function: Text<'a>,
    /// The element count.
    pub count: u64,
    /// The peer.
    pub peer: i32,
    /// This process's rank.
    pub rank: i32,
    /// The data type.
    pub dtype: Text<'a>,
    /// The number of channels; 0 if unknown.
    pub channels: u8,
}
