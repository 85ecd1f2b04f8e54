//! Inter-node communication over TCP. Jobs that use libfabric run through this engine, too: only
//! their data messages leave TCP (`crate::libfabric`).
//!
//! Each rank runs a control-plane thread (`control_plane`) with a connection to rank 0. It carries
//! heartbeats and faults; rank 0 decides on a fault for all ranks (`fault_coordinator`). Data
//! messages travel directly between ranks (`data_plane`): the sender opens the connections on first
//! use, and the thread waiting in a collective reads and writes them. Every connection authenticates
//! with the job's secret before anything else.

mod context;
mod control_messages;
mod control_plane;
mod data_plane;
mod dial;
mod engine;
mod fault_coordinator;
mod frame;
mod rendezvous;
mod status_query;
mod transport;

pub use engine::TcpEngine;
pub use transport::TcpTransport;

pub(crate) use context::TcpContext;
pub(crate) use control_messages::{
    FromRoot, Hello, MAX_CONNECTIONS, RankInfo, ToRoot, decode, encode,
};
pub(crate) use control_plane::{ControlHandle, ControlPlane, ControlRole, RootState};
pub(crate) use data_plane::{CommTable, LinkDirection, PostedRecv, SharedDataPlane, check_match};
pub(crate) use dial::{AuthConn, Dial, DialError};
pub(crate) use frame::{HEADER_BYTES, Header, MessageKey};
