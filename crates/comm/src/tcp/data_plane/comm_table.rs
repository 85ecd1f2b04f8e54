//! The communicators of this process, as seen by the data plane and by rank 0.

use std::collections::{HashMap, HashSet, VecDeque};

use regatta_model::hash::fnv1a;

use crate::Signature;
use crate::control::MessageCounts;
use crate::tcp::frame::Header;
use crate::transport::RequestId;

/// Number of closed communicators for which late messages are discarded. Their IDs are never reused.
const MAX_CLOSED: usize = 1 << 16;

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
    pub completed: Vec<RequestId>,
    /// Total bytes sent and received.
    pub bytes_moved: u64,
    pub protocol_error: Option<ProtocolError>,
    /// Messages of the current call.
    pub message_counts: MessageCounts,
}

impl CommState {
    /// Starts a call.
    pub fn begin(&mut self, signature: Signature) {
        self.calls += 1;
        self.message_counts.sent.clear();
        self.message_counts.received.clear();
        self.message_counts.awaited.clear();
        self.signature_hash = signature_hash(&signature);
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
    open: HashMap<u64, CommState>,
    closed: HashSet<u64>,
    /// The closed communicators, oldest first.
    close_order: VecDeque<u64>,
    /// Whether an operation completed that another thread may be waiting for.
    pub(super) progressed: bool,
}

impl CommTable {
    /// The state of a communicator that this rank uses; opens it on first use.
    pub fn get(&mut self, comm_id: u64) -> &mut CommState {
        self.open.entry(comm_id).or_default()
    }

    /// Forgets a communicator. Messages that still arrive for it are discarded.
    pub fn close(&mut self, comm_id: u64) {
        self.open.remove(&comm_id);
        if self.closed.insert(comm_id) {
            self.close_order.push_back(comm_id);
        }
        if self.close_order.len() > MAX_CLOSED
            && let Some(oldest) = self.close_order.pop_front()
        {
            self.closed.remove(&oldest);
        }
    }

    pub fn peek(&self, comm_id: u64) -> Option<&CommState> {
        self.open.get(&comm_id)
    }

    pub fn is_closed(&self, comm_id: u64) -> bool {
        self.closed.contains(&comm_id)
    }

    /// Takes the completed requests of a communicator.
    pub fn take_completed(&mut self, comm_id: u64) -> Vec<RequestId> {
        self.open
            .get_mut(&comm_id)
            .map(|comm| std::mem::take(&mut comm.completed))
            .unwrap_or_default()
    }

    /// Completes a request. A message that was being sent when its communicator was closed has no
    /// request any more.
    pub fn complete(&mut self, comm_id: u64, request: RequestId) {
        self.progressed = true;
        if let Some(comm) = self.open.get_mut(&comm_id) {
            comm.completed.push(request);
        }
    }

    pub fn add_bytes_moved(&mut self, comm_id: u64, bytes: usize) {
        if let Some(comm) = self.open.get_mut(&comm_id) {
            comm.bytes_moved += bytes as u64;
        }
    }

    pub(super) fn set_protocol_error(&mut self, comm_id: u64, error: ProtocolError) {
        self.progressed = true;
        if let Some(comm) = self.open.get_mut(&comm_id) {
            comm.protocol_error.get_or_insert(error);
        }
    }

    /// Whether an unexpected message may still be received later. A message of a finished call, or
    /// of the current call with another signature, is a protocol error.
    pub fn accept_unexpected(&mut self, header: &Header) -> bool {
        let key = header.key;
        if self.is_closed(key.comm_id) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frame::MessageKey;
    use crate::transport::MatchKey;

    fn header(comm_id: u64) -> Header {
        let key = MessageKey::new(comm_id, MatchKey::Tag(1), 0);
        Header { key, length: 0, signature_hash: 0, stripes: 1 }
    }

    /// The rest of a message in progress is sent after its communicator is closed.
    #[test]
    fn late_completions_do_not_reopen_a_closed_communicator() {
        let mut comms = CommTable::default();
        comms.get(7).calls = 3;
        comms.close(7);
        comms.complete(7, RequestId(1));
        comms.set_protocol_error(7, ProtocolError::CallMismatch { call: 1 });
        assert!(comms.take_completed(7).is_empty() && comms.peek(7).is_none());
        assert!(!comms.accept_unexpected(&header(7)));
    }

    #[test]
    fn the_number_of_closed_communicators_is_bounded() {
        let mut comms = CommTable::default();
        let last = 2 * MAX_CLOSED as u64;
        (0..=last).for_each(|comm_id| comms.close(comm_id));
        assert_eq!((comms.closed.len(), comms.close_order.len()), (MAX_CLOSED, MAX_CLOSED));
        assert!(comms.is_closed(last) && !comms.is_closed(0));
    }
}
