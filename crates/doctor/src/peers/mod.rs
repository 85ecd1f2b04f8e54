//! Tests the network between the nodes: reachability, round trips, clocks and bandwidth over TCP.
//!
//! The launcher sends every node the [`PeerTable`]. A node listens, connects to the nodes that
//! [`schedule`] assigns to it, and answers those that connect to it. There is no rendezvous: a node
//! that cannot be reached delays only the nodes that test it.

mod client;
mod connect;
mod networks;
mod protocol;
pub mod schedule;
mod server;
mod table;

use std::time::{Duration, Instant};

use regatta_wire::secret::{Secret, SecretError};

use crate::facts::Peer;
pub use networks::networks;
pub use table::{PeerNode, PeerTable};

/// Time limits of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Time for a connection, and for each answer.
    pub answer: Duration,
    /// Time for a node to start listening after another has started to connect.
    pub start: Duration,
    /// Time for the whole test.
    pub total: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { answer: seconds(3), start: seconds(10), total: seconds(20) }
    }
}

/// Why a node cannot take part in the test.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PeerTestError {
    /// No port can be bound.
    #[error("cannot listen on ports {ports:?}: {source}")]
    Listen { ports: Vec<u16>, source: std::io::Error },
    /// Invalid table.
    #[error("{0}")]
    Secret(#[from] SecretError),
}

/// The test of one node.
pub struct PeerTest<'a> {
    table: &'a PeerTable,
    own: usize,
    secret: Secret,
    limits: PeerLimits,
    server: server::Server,
}

impl<'a> PeerTest<'a> {
    /// Listens as node `own`. Called early, so that other nodes do not wait for it.
    pub fn start(
        table: &'a PeerTable,
        own: usize,
        limits: PeerLimits,
    ) -> Result<Self, PeerTestError> {
        let secret = Secret::from_hex(&table.token)?;
        let server = server::Server::start(table, own, &secret, limits)?;
        Ok(Self { table, own, secret, limits, server })
    }

    /// Tests the connections of this node, and answers the others until all of them have ended their
    /// tests or the time is over.
    pub fn run(self) -> Vec<Peer> {
        let Self { table, own, secret, limits, server } = self;
        let deadline = Instant::now() + limits.total;
        let peers = client::test_all(table, own, &secret, limits, deadline);
        server.finish(deadline);
        peers
    }
}

#[cfg(test)]
mod tests;
