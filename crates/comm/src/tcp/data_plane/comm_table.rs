//! The communicators of this process, as seen by the data plane and by rank 0.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use regatta_model::hash::fnv1a;

use crate::Signature;
use crate::tcp::control_messages::MessageCounts;
use crate::tcp::frame::Header;
use crate::transport::RequestId;

/// Number of past calls whose signatures are kept.
const HISTORY: usize = 16;

/// An inconsistency found in a communicator's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// A message belongs to a different call than this rank's.
    CallMismatch {
        /// The sequence number of the call.
        call: u64,
    },
    /// A message does not have the size of the posted receive.
    SizeMismatch {
        /// The receive.
        request: RequestId,
        /// Bytes sent.
        sent: u64,
        /// Bytes expected.
        expected: u64,
    },
}

/// The state of one communicator.
#[derive(Default)]
pub struct CommState {
    /// Number of calls started.
    pub calls: u64,
    /// Hash of the signature of the current call.
    pub signature_hash: u32,
    history: VecDeque<(u64, Signature)>,
    pub completed: Vec<RequestId>,
    /// Total bytes sent and received.
    pub bytes_moved: u64,
    pub protocol_error: Option<ProtocolError>,
    /// Messages of the current call.
    pub message_counts: MessageCounts,
    /// The ranks this rank has been waiting for, and since when.
    pub waiting_for: Option<(Instant, Vec<u32>)>,
}

impl CommState {
    /// Starts a call.
    pub fn begin(&mut self, signature: Signature) {
        self.calls += 1;
        self.message_counts.sent.clear();
        self.message_counts.received.clear();
        self.message_counts.awaited.clear();
        self.signature_hash = signature_hash(&signature);
        self.history.push_back((self.calls, signature));
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// The signature of a recent call.
    pub fn signature_of(&self, call: u64) -> Option<Signature> {
        self.history.iter().find(|(number, _)| *number == call).map(|(_, signature)| *signature)
    }

    /// The recent calls with their sequence numbers.
    pub fn recent_calls(&self) -> Vec<(u64, Signature)> {
        self.history.iter().copied().collect()
    }
}

/// A hash of all fields.
fn signature_hash(signature: &Signature) -> u32 {
    let Signature { kind, dtype, op, root, count, shape } = *signature;
    let words = [root.into(), count, shape].into_iter().flat_map(u64::to_le_bytes);
    let hash = fnv1a([kind as u8, dtype as u8, op as u8].into_iter().chain(words));
    (hash ^ (hash >> 32)) as u32
}

/// The communicators of this process.
#[derive(Default)]
pub struct CommTable {
    pub(super) open: HashMap<u64, CommState>,
    pub(super) closed: HashSet<u64>,
    /// Whether an operation completed that another thread may be waiting for.
    pub(super) progressed: bool,
}

impl CommTable {
    pub fn get(&mut self, comm_id: u64) -> &mut CommState {
        self.open.entry(comm_id).or_default()
    }

    pub fn peek(&self, comm_id: u64) -> Option<&CommState> {
        self.open.get(&comm_id)
    }

    /// The ranks this rank waits for in any communicator, and for how long.
    pub fn waits(&self, now: Instant) -> impl Iterator<Item = (u32, Duration)> + '_ {
        let waits = self.open.values().filter_map(|comm| comm.waiting_for.as_ref());
        waits.flat_map(move |(since, ranks)| {
            let waited = now.saturating_duration_since(*since);
            ranks.iter().map(move |rank| (*rank, waited))
        })
    }

    pub fn complete(&mut self, comm_id: u64, request: RequestId) {
        self.progressed = true;
        self.get(comm_id).completed.push(request);
    }

    pub fn add_bytes_moved(&mut self, comm_id: u64, bytes: usize) {
        if let Some(comm) = self.open.get_mut(&comm_id) {
            comm.bytes_moved += bytes as u64;
        }
    }

    pub(super) fn set_protocol_error(&mut self, comm_id: u64, error: ProtocolError) {
        self.progressed = true;
        self.get(comm_id).protocol_error.get_or_insert(error);
    }

    /// Whether an unexpected message may still be received later. A message of a finished call, or
    /// of the current call with another signature, is a protocol error.
    pub fn accept_unexpected(&mut self, header: &Header) -> bool {
        let key = header.key;
        if self.closed.contains(&key.comm_id) {
            return false;
        }
        let Some(comm) = self.open.get_mut(&key.comm_id) else { return true };
        let other = key.number == comm.calls && header.signature_hash != comm.signature_hash;
        if !key.tagged && (key.number < comm.calls || other) {
            self.set_protocol_error(key.comm_id, ProtocolError::CallMismatch { call: key.number });
            return false;
        }
        true
    }
}
