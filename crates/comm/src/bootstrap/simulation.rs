//! The messages of a rank in the bootstrap, without sockets, to simulate thousands of ranks in a few
//! processes.

use std::net::SocketAddr;

use crate::control::{FromRoot, Hello, RankInfo, ToRoot, children, decode, encode};
use crate::libfabric::Preference;

/// What a simulated rank does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedStep {
    /// It has the world table, and confirms it with [`confirmation`].
    Confirm,
    /// It requests the world table from the rank at this address, with [`table_request`].
    RequestFrom(SocketAddr),
    /// The bootstrap failed.
    Failed,
}

/// Registers a rank with rank 0; eight ranks share a node.
pub fn registration(rank: u32, world_size: u32, address: SocketAddr) -> Vec<u8> {
    const RANKS_PER_NODE: u32 = 8;
    let node = rank / RANKS_PER_NODE;
    let member = RankInfo {
        rank,
        local_rank: rank % RANKS_PER_NODE,
        host: format!("node{node:05}"),
        node: node.into(),
        ips: vec![address.ip()],
        port: address.port(),
        debug: false,
        fabric: Preference::Tcp,
    };
    encode(&Hello::Join { world_size, member })
}

/// Requests the world table from another rank.
pub fn table_request() -> Vec<u8> {
    encode(&Hello::WorldTable)
}

/// Whether a frame is a [`table_request`].
pub fn is_table_request(frame: &[u8]) -> bool {
    decode(frame) == Some(Hello::WorldTable)
}

/// Confirms to rank 0 that a rank has the world table.
pub fn confirmation() -> Vec<u8> {
    encode(&ToRoot::HasTable)
}

/// Announces a regular exit to rank 0.
pub fn exit() -> Vec<u8> {
    encode(&ToRoot::Shutdown)
}

/// Whether a rank passes the world table on.
pub fn has_children(rank: u32, world_size: u32, fanout: u32) -> bool {
    !children(rank, world_size, fanout).is_empty()
}

/// What the reply of rank 0 or of another rank amounts to.
pub fn next_step(reply: &[u8]) -> SimulatedStep {
    match decode::<FromRoot>(reply) {
        Some(FromRoot::Ready { table, .. }) => {
            table.into_members().map_or(SimulatedStep::Failed, |_| SimulatedStep::Confirm)
        }
        Some(FromRoot::ReadyAt(RankInfo { ips, port, .. })) if !ips.is_empty() => {
            SimulatedStep::RequestFrom(SocketAddr::new(ips[0], port))
        }
        _ => SimulatedStep::Failed,
    }
}
