//! The control plane of a job: rendezvous, heartbeats and faults.
//!
//! Each rank runs a control-plane thread (`thread`) with a connection to rank 0. Transports report
//! what they observe, and rank 0 decides on a fault for all ranks (`coordinator`), so that all ranks
//! report the same one. Every connection authenticates with the job's secret before anything else.

mod coordinator;
mod dial;
mod messages;
mod rendezvous;
mod stall_detector;
mod status_query;
mod thread;
pub mod wait_graph;

pub(crate) use dial::{AuthConn, Dial, DialError};
pub(crate) use messages::{
    ACCEPTED, ACCEPTED_REUSE, CommClosed, Fault, FromRoot, Hello, MAX_CONNECTIONS, MessageCounts,
    RankInfo, ToRoot, decode, encode,
};
pub(crate) use stall_detector::{StallAction, StallDetector};
pub(crate) use thread::{ControlHandle, ControlPlane, ControlRole, RootState};
