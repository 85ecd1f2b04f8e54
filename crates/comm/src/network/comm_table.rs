//! The communicators of this process, as seen by the network and by rank 0.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::Signature;
use crate::control::{MessageCounts, signature_codec};
use crate::matching::{CommStatus, ProtocolError};
use crate::transport::RequestId;

/// Number of closed communicators for which late messages are discarded. Their IDs are never reused.
const MAX_CLOSED: usize = 1 << 16;

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
    /// Whether its thread sleeps.
    pub sleeping: bool,
}

impl CommState {
    /// Starts a call.
    pub fn begin(&mut self, signature: Signature) {
        self.calls += 1;
        self.message_counts.sent.clear();
        self.message_counts.received.clear();
        self.message_counts.awaited.clear();
        let digest = signature_codec::digest(signature_codec::encode(&signature));
        self.signature_hash = (digest ^ (digest >> 32)) as u32;
    }
}

/// The communicators of this process.
#[derive(Default)]
pub struct CommTable {
    /// A process has few, and this is looked up for every message.
    pub open: BTreeMap<u64, CommState>,
    closed: HashSet<u64>,
    /// The closed communicators, oldest first.
    close_order: VecDeque<u64>,
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

    pub fn status(&self, comm_id: u64) -> CommStatus {
        match self.open.get(&comm_id) {
            Some(comm) => {
                CommStatus::Open { calls: comm.calls, signature_hash: comm.signature_hash }
            }
            None if self.closed.contains(&comm_id) => CommStatus::Closed,
            None => CommStatus::Unknown,
        }
    }

    /// Takes the completed requests of a communicator.
    pub fn take_completed(&mut self, comm_id: u64) -> Vec<RequestId> {
        let comm = self.open.get_mut(&comm_id);
        comm.map(|comm| std::mem::take(&mut comm.completed)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_closed_communicators_is_bounded() {
        let mut comms = CommTable::default();
        let last = 2 * MAX_CLOSED as u64;
        (0..=last).for_each(|comm_id| comms.close(comm_id));
        assert_eq!((comms.closed.len(), comms.close_order.len()), (MAX_CLOSED, MAX_CLOSED));
        assert_eq!(comms.status(last), CommStatus::Closed);
        assert_eq!(comms.status(0), CommStatus::Unknown);
    }
}
