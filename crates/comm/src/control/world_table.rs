//! The world table, the addresses of all ranks. All ranks receive a copy, so it is compact: ranks of a
//! node share most of their information.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::messages::RankInfo;
use crate::libfabric::Preference;

/// All ranks, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldTable {
    nodes: Vec<NodeInfo>,
    ranks: Vec<RankEntry>,
}

/// What ranks of a node have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct NodeInfo {
    host: String,
    node: u64,
    ips: Vec<IpAddr>,
    debug: bool,
    fabric: Preference,
}

/// What differs between ranks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RankEntry {
    /// The index of its [`NodeInfo`].
    node: u32,
    local_rank: u32,
    port: u16,
}

impl WorldTable {
    /// The table of these ranks, which are in order.
    pub fn new(members: &[RankInfo]) -> Self {
        let mut nodes: Vec<NodeInfo> = Vec::new();
        let mut index: HashMap<NodeInfo, u32> = HashMap::new();
        let entry = |member: &RankInfo| {
            let RankInfo { local_rank, host, node, ips, port, debug, fabric, .. } = member.clone();
            let info = NodeInfo { host, node, ips, debug, fabric };
            let node = *index.entry(info).or_insert_with_key(|info| {
                nodes.push(info.clone());
                nodes.len() as u32 - 1
            });
            RankEntry { node, local_rank, port }
        };
        let ranks = members.iter().map(entry).collect();
        Self { nodes, ranks }
    }

    /// The ranks, in order; `None` if the table is inconsistent.
    pub fn into_members(self) -> Option<Vec<RankInfo>> {
        let Self { nodes, ranks } = self;
        let member = |(rank, entry): (u32, RankEntry)| {
            let NodeInfo { host, node, ips, debug, fabric } =
                nodes.get(entry.node as usize)?.clone();
            let RankEntry { local_rank, port, .. } = entry;
            Some(RankInfo { rank, local_rank, host, node, ips, port, debug, fabric })
        };
        (0..).zip(ranks).map(member).collect()
    }
}

/// The ranks that receive the table from `parent`.
pub fn children(parent: u32, world_size: u32, fanout: u32) -> Range<u32> {
    let first = parent.saturating_mul(fanout).saturating_add(1).min(world_size);
    first..first.saturating_add(fanout).min(world_size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::{decode, encode};

    fn member(rank: u32, (host, local_rank, port): (u8, u32, u16)) -> RankInfo {
        RankInfo {
            rank,
            local_rank,
            host: format!("node{host}"),
            node: u64::from(host) << 40,
            ips: vec![[10, 0, 0, host].into(), [10, 0, 1, host].into()],
            port,
            debug: host > 100,
            fabric: Preference::Tcp,
        }
    }

    proptest! {
        #[test]
        fn tables_round_trip(of_ranks: Vec<(u8, u32, u16)>) {
            let members: Vec<RankInfo> = (0..).zip(of_ranks).map(|(r, of)| member(r, of)).collect();
            let table: WorldTable = decode(&encode(&WorldTable::new(&members))).unwrap();
            prop_assert_eq!(table.into_members(), Some(members));
        }
    }

    #[test]
    fn ranks_of_a_node_take_few_bytes() {
        let of_rank = |rank: u32| member(rank, ((rank / 64) as u8, rank % 64, 40_000));
        let members: Vec<RankInfo> = (0..16_384).map(of_rank).collect();
        assert!(encode(&WorldTable::new(&members)).len() < 8 * members.len());
    }

    #[test]
    fn a_table_with_an_unknown_node_is_rejected() {
        let ranks = vec![RankEntry { node: 0, local_rank: 0, port: 1 }];
        assert_eq!(WorldTable { nodes: Vec::new(), ranks }.into_members(), None);
    }
}
