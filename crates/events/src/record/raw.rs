//! Raw events: what callbacks and calls put into the ring.

use crate::operation::{Algorithm, DataType, OperationKind, Protocol};

/// Longest communicator name that is kept.
pub const MAX_NAME: usize = 40;

/// An event of the ring. Operations are identified by [`super::Recorder::next_operation`], communicators
/// by [`super::Recorder::next_communicator`]. Times are of the host clock; a device time of 0 is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawEvent {
    /// A communicator was created, or got a name.
    Open(OpenCommunicator),
    /// A communicator was destroyed.
    Close {
        /// The communicator.
        communicator: u32,
    },
    /// An operation was enqueued.
    Enqueue(Enqueue),
    /// A channel of an operation started to run.
    Start {
        /// The operation.
        operation: u64,
        /// When.
        time: u64,
        /// When, on the device clock.
        device_time: u64,
    },
    /// A channel of an operation ended.
    End {
        /// The operation.
        operation: u64,
        /// When.
        time: u64,
        /// When, on the device clock.
        device_time: u64,
    },
    /// Nothing reports when the operation starts and ends: it is stored without a duration.
    Untimed {
        /// The operation.
        operation: u64,
        /// When it was enqueued.
        time: u64,
    },
    /// A network transfer of an operation started: a send or receive of one channel.
    NetworkStart {
        /// The operation.
        operation: u64,
        /// When.
        time: u64,
    },
    /// A network transfer of an operation ended.
    NetworkEnd {
        /// The operation.
        operation: u64,
        /// When.
        time: u64,
    },
    /// A step of a network transfer changed its state.
    Step(Step),
}

/// A new communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCommunicator {
    /// Its index.
    pub communicator: u32,
    /// The same number on all of its ranks; 0 if unknown.
    pub id: u64,
    /// The number of its ranks; 0 if unknown.
    pub ranks: u32,
    /// The number of its nodes; 0 if unknown.
    pub nodes: u32,
    /// This process's rank in it.
    pub rank: u32,
    /// Its name, padded with zeros.
    pub name: [u8; MAX_NAME],
}

/// A name for [`OpenCommunicator`], cut if it is too long.
pub fn fixed_name(text: &[u8]) -> [u8; MAX_NAME] {
    let mut name = [0; MAX_NAME];
    let length = text.len().min(MAX_NAME);
    name[..length].copy_from_slice(&text[..length]);
    name
}

/// An enqueued operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueue {
    /// The operation.
    pub operation: u64,
    /// The communicator.
    pub communicator: u32,
    /// When.
    pub time: u64,
    /// The library's own sequence number.
    pub sequence: u64,
    /// The kind.
    pub kind: OperationKind,
    /// The data type.
    pub dtype: DataType,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// The number of channels that start and end; 0 if unknown.
    pub channels: u16,
    /// Root or peer; negative if there is none.
    pub peer: i32,
    /// The element count.
    pub count: u64,
    /// The message size, if the parts of the ranks differ; 0: it follows from the count.
    pub bytes: u64,
    /// Whether it was captured into a CUDA graph.
    pub captured: bool,
}

/// A state of a network step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The operation.
    pub operation: u64,
    /// The channel, or another number that tells the transfers of the operation apart.
    pub channel: u8,
    /// Its number among the steps of the transfer, modulo 256.
    pub step: u8,
    /// The state.
    pub state: StepState,
    /// When.
    pub time: u64,
    /// Bytes of the transfer; 0 if not known yet.
    pub bytes: u64,
}

/// What a network step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepState {
    /// A send is in the network.
    Sending,
    /// The send ended.
    Sent,
    /// A receive waits for data.
    Receiving,
    /// Data was received.
    Received,
}
