//! The control plane of a job: rendezvous, heartbeats and faults.
//!
//! Each rank runs a control-plane thread (`thread`) with a connection to rank 0. Transports report
//! what they observe, and rank 0 decides on a fault for all ranks (`coordinator`), so that all ranks
//! report the same one. Every connection authenticates with the job's secret before anything else.

mod call_history;
mod call_watch;
mod coordinator;
mod dial;
mod messages;
mod monitor;
mod registry;
mod rendezvous;
pub(crate) mod signature_codec;
mod stall_detector;
mod status_query;
mod thread;
mod world_table;

pub(crate) use call_watch::{CallWatch, Wait};
pub(crate) use dial::{AuthConn, Dial, DialError};
pub(crate) use messages::{
    ACCEPTED, ACCEPTED_REUSE, CommClosed, FromRoot, Hello, MAX_CONNECTIONS, MessageCounts,
    RankInfo, ToRoot, decode, encode,
};
pub use monitor::CommMonitor;
pub(crate) use monitor::Job;
pub(crate) use registry::CommRegistry;
pub(crate) use stall_detector::StallAction;
pub(crate) use thread::{ControlHandle, ControlPlane, ControlRole, RootState};
pub(crate) use world_table::children;
