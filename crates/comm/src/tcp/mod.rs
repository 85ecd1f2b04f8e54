//! Ranks of different nodes, through TCP.
//!
//! Each rank has a thread beside its collectives (`keeper`) with a connection to rank 0: signs of
//! life go over it, and what is wrong, which rank 0 decides for all (`judge`). Messages go from
//! rank to rank directly (`mesh`): the sender opens the connections when it needs them, and
//! whoever waits for a collective reads and writes them itself. All connections prove the job's
//! secret first.

mod channel;
mod control;
mod dial;
mod endpoint;
mod engine;
mod frame;
mod gathering;
mod inquiry;
mod judge;
#[cfg(test)]
mod judge_tests;
mod keeper;
mod mesh;

pub use channel::TcpTransport;
pub use engine::TcpEngine;

pub(crate) use control::{Down, Hello, MOST_CONNECTIONS, Member, decode, encode, fingerprint};
pub(crate) use dial::{Dial, Line, NoLine};
pub(crate) use endpoint::Endpoint;
pub(crate) use frame::{HEAD, Head, Key};
pub(crate) use keeper::{Control, Hub, Keeper};
pub(crate) use mesh::{Channels, Posted, Shared, Way, fits};
