//! Inter-node communication over TCP.
//!
//! Data messages travel directly between ranks (`sockets`): the sender opens the connections on
//! first use, and the thread waiting in a collective reads and writes them. Every connection
//! authenticates with the job's secret before anything else. Faults are reported to the control
//! plane (`crate::control`), which accepts the connections as well.

mod dialler;
mod frame;
mod sockets;

pub(crate) use dialler::Dialler;
pub(crate) use sockets::Sockets;
