//! Inter-node communication over TCP. Jobs that use libfabric run through this engine, too: only
//! their data messages leave TCP (`crate::libfabric`).
//!
//! Data messages travel directly between ranks (`data_plane`): the sender opens the connections on
//! first use, and the thread waiting in a collective reads and writes them. Every connection
//! authenticates with the job's secret before anything else. Faults are reported to the control
//! plane (`crate::control`), which accepts the connections as well.

mod context;
mod data_plane;
mod engine;
mod frame;
mod transport;

pub use engine::TcpEngine;
pub(crate) use transport::MonitorRole;
pub use transport::TcpTransport;

pub(crate) use context::TcpContext;
pub(crate) use data_plane::{CommTable, LinkDirection, PostedRecv, SharedDataPlane, check_match};
pub(crate) use frame::{HEADER_BYTES, Header, MessageKey};
