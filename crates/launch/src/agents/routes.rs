//! Routing table: which connection leads to which node.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Nodes that became unreachable with a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRoutes {
    /// The node at the other end, unless it has reconnected.
    pub peer: Option<u32>,
    /// Nodes behind it.
    pub descendants: Vec<u32>,
}

/// Routes from one point of the tree to the nodes below it.
#[derive(Debug)]
pub struct Routes<C> {
    /// Next hop to a node: the connection over which it was last announced.
    next_hop: BTreeMap<u32, C>,
    /// The node at the other end of each connection.
    peers: HashMap<C, u32>,
}

impl<C> Default for Routes<C> {
    fn default() -> Self {
        Self { next_hop: BTreeMap::new(), peers: HashMap::new() }
    }
}

impl<C: Copy + Eq + Hash> Routes<C> {
    /// A node was announced over a connection. The first one announced is the peer itself.
    pub fn learn(&mut self, conn: C, node: u32) {
        self.peers.entry(conn).or_insert(node);
        self.next_hop.insert(node, conn);
    }

    /// The connection that leads to a node.
    pub fn next_hop(&self, node: u32) -> Option<C> {
        self.next_hop.get(&node).copied()
    }

    /// All reachable nodes.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.next_hop.keys().copied()
    }

    /// The connections to all children.
    pub fn children(&self) -> impl Iterator<Item = C> {
        self.peers.keys().copied()
    }

    /// Withdraws nodes that a child reports as unreachable.
    pub fn withdraw(&mut self, conn: C, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            if self.next_hop(node) == Some(conn) && self.peers.get(&conn) != Some(&node) {
                self.next_hop.remove(&node);
            }
        }
    }

    /// Removes a closed connection; returns the nodes that only it led to.
    pub fn close(&mut self, conn: C) -> Option<LostRoutes> {
        let peer = self.peers.remove(&conn)?;
        let lost: Vec<u32> =
            self.next_hop.iter().filter(|(_, c)| **c == conn).map(|(n, _)| *n).collect();
        self.next_hop.retain(|_, c| *c != conn);
        let descendants = lost.iter().copied().filter(|n| *n != peer).collect();
        let peer = lost.contains(&peer).then_some(peer);
        (!lost.is_empty()).then_some(LostRoutes { peer, descendants })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_connection_loses_only_nodes_without_another_route() {
        let mut routes = Routes::default();
        routes.learn('a', 1);
        routes.learn('a', 4);
        routes.learn('a', 5);
        routes.learn('b', 2);
        routes.learn('b', 5);
        let lost = |peer, descendants| Some(LostRoutes { peer, descendants });
        assert_eq!(routes.close('a'), lost(Some(1), vec![4]));
        assert_eq!((routes.next_hop(5), routes.next_hop(1)), (Some('b'), None));
        routes.learn('c', 2);
        assert_eq!(routes.close('b'), lost(None, vec![5]));
        assert_eq!(routes.close('c'), lost(Some(2), vec![]));
        assert_eq!(routes.close('c'), None);
    }
}
