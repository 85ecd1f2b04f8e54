//! Messages of the control plane between rank 0 and the other ranks: addresses, faults and status.

use std::collections::BTreeSet;
use std::net::IpAddr;

use regatta_events::hang::wording;
use serde::{Deserialize, Serialize};

use super::world_table::WorldTable;
use crate::Signature;
use crate::libfabric::Preference;

/// A rank and its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankInfo {
    /// The global rank.
    pub rank: u32,
    pub local_rank: u32,
    pub host: String,
    /// An ID of the node that does not depend on the host name.
    pub node: u64,
    /// The addresses it listens on. Empty for an unbound rank 0: peers use the address they reach
    /// it by.
    pub ips: Vec<IpAddr>,
    /// The port it listens on.
    pub port: u16,
    /// Whether it compares call signatures before data moves.
    pub debug: bool,
    /// Its network preference.
    pub fabric: Preference,
}

/// The first message on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// Registers a rank with rank 0.
    Join {
        /// The number of ranks it expects.
        world_size: u32,
        member: RankInfo,
    },
    /// Opens a data connection.
    Data {
        /// The rank that opened it.
        rank: u32,
        /// The index among that rank's connections.
        index: u8,
    },
    /// Requests [`FromRoot::Ready`] from any rank, which answers once it has it.
    WorldTable,
}

/// Upper limit of connections to one peer.
pub const MAX_CONNECTIONS: u8 = 16;

/// Sent before the first message: the connection is accepted.
pub const ACCEPTED: &[u8] = b"accepted";

/// Accepted, but the acceptor already sends on another connection, which both sides should use.
pub const ACCEPTED_REUSE: &[u8] = b"accepted, reuse";

/// Why a communicator failed, in global ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Fault {
    /// A rank was lost.
    #[error("global rank {rank} was lost: {why}")]
    Lost {
        rank: u32,
        /// How it was detected.
        why: String,
    },
    /// Ranks made different calls.
    #[error("{}", wording::mismatch(format!("call {sequence}"), [
        (&format!("global rank {}", majority.0), &majority.1),
        (&format!("global rank {}", minority.0), &minority.1),
    ]))]
    CallMismatch {
        /// The sequence number of the call.
        sequence: u64,
        /// A rank of the majority and its call.
        majority: (u32, Signature),
        /// A rank that made another call.
        minority: (u32, Signature),
    },
    /// Ranks did not enter a call in time.
    #[error("{}", wording::timed_out(*seconds, format!("global ranks {missing:?}")))]
    Timeout {
        /// The sequence number of the call.
        sequence: u64,
        /// The time waited.
        seconds: u64,
        /// The late ranks.
        missing: Vec<u32>,
    },
    /// Both ranks are alive, but messages from one do not reach the other.
    #[error("the link from global rank {from} to global rank {to} failed: {why}")]
    LinkBroken {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// How it was detected.
        why: String,
    },
    /// A rank aborted.
    #[error("global rank {rank} aborted: {why}")]
    Aborted {
        rank: u32,
        /// Its reason.
        why: String,
    },
}

impl Fault {
    /// Whether the fault affects a communicator of these ranks, unless it names one.
    pub fn concerns(&self, members: &[u32]) -> bool {
        match self {
            // Without rank 0 there is no fault coordinator.
            Self::Lost { rank, .. } => *rank == 0 || members.contains(rank),
            Self::LinkBroken { from, to, .. } => members.contains(from) && members.contains(to),
            _ => true,
        }
    }
}

/// The message counts of a rank in its current collective.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageCounts {
    /// Messages sent, by receiver.
    pub sent: Vec<(u32, u64)>,
    /// Messages received, by sender.
    pub received: Vec<(u32, u64)>,
    /// The sender of every pending receive.
    pub awaited: Vec<u32>,
}

/// Announces that a rank closed a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommClosed {
    /// The communicator.
    pub comm_id: u64,
    /// The number of its members.
    pub size: u32,
    /// The number of collectives it completed.
    pub calls: u64,
    /// The number of messages it sent, by receiver.
    pub p2p_sent: Vec<(u32, u64)>,
}

/// A connection to a peer that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnFailure {
    /// The communicator in use.
    pub comm_id: u64,
    /// The peer.
    pub rank: u32,
    /// Whether the reporting rank was the sender.
    pub sending: bool,
    /// The error.
    pub why: String,
    /// All members of the communicator.
    pub members: Vec<u32>,
}

/// A call that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledCall {
    /// The communicator.
    pub comm_id: u64,
    /// The sequence number of the collective; `None` for a message.
    pub call: Option<u64>,
    /// The ranks that the requester waits for.
    pub awaited: BTreeSet<u32>,
    /// All members, if a collective timed out.
    pub members: Vec<u32>,
}

/// The status of a rank in a communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The number of collectives started.
    pub calls: u64,
    /// The recent collectives with their sequence numbers.
    pub recent_calls: Vec<(u64, Signature)>,
    /// The message counts of the current one.
    pub message_counts: MessageCounts,
    /// The ranks it waits for in any communicator, and for how many milliseconds.
    pub waits: Vec<(u32, u64)>,
}

/// Why the bootstrap failed, and the fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousError {
    /// The cause.
    pub what: String,
    /// The fix.
    pub hint: String,
}

/// Messages from a rank to rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRoot {
    /// The rank has received [`FromRoot::Ready`].
    HasTable,
    /// A connection to a peer failed.
    ConnFailed(ConnFailure),
    /// Asks whether a stalled call can still complete.
    Query {
        stalled: StalledCall,
        /// The seconds waited, if the call timed out: the status of all ranks is then queried.
        timeout_s: Option<u64>,
    },
    /// Answers [`FromRoot::QueryStatus`].
    Status { query: u64, status: RankStatus },
    /// Aborts a communicator.
    Abort {
        /// The communicator.
        comm_id: u64,
        /// The cause.
        fault: Fault,
    },
    /// Announces that the rank closed a communicator.
    Closed(CommClosed),
    /// Announces a regular exit.
    Shutdown,
}

/// Messages from rank 0 to a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRoot {
    /// All ranks are registered. Encoded once; ranks pass it on along a tree.
    Ready {
        /// The addresses of all ranks.
        table: WorldTable,
        /// The algorithm table, as a JSON document.
        algorithms: String,
        /// The fan-out of the tree.
        fanout: u32,
    },
    /// All ranks are registered. This one passes on [`Self::Ready`].
    ReadyAt(RankInfo),
    /// The bootstrap failed.
    Rejected(RendezvousError),
    /// This rank 0 is that of an earlier job, which is about to exit.
    TryLater,
    /// Asks for the rank's [`ToRoot::Status`] in a communicator.
    QueryStatus {
        query: u64,
        /// The communicator.
        comm_id: u64,
    },
    /// Aborts a communicator, or every communicator that the fault concerns.
    Abort {
        /// The communicator; `None` for all that the fault concerns.
        comm_id: Option<u64>,
        /// The cause.
        fault: Fault,
    },
    /// All queried ranks responded and agree.
    Clear {
        /// The communicator.
        comm_id: u64,
    },
    /// A rank closed a communicator.
    Closed {
        rank: u32,
        /// Its announcement.
        closed: CommClosed,
    },
    /// Rank 0 exits regularly.
    Shutdown,
}

/// Serialises a message.
#[allow(clippy::expect_used, reason = "an empty frame would be lost without an error")]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("serialising control messages is infallible")
}

/// Deserialises a message; `None` if it is malformed.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
