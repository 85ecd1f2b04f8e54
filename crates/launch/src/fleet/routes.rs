//! Which connection leads to which node.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// What a connection that ended led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The node at its other end, unless it has called anew meanwhile.
    pub node: Option<u32>,
    /// Those below that.
    pub below: Vec<u32>,
}

/// The ways from one point of the tree downwards.
#[derive(Debug)]
pub struct Routes<C> {
    /// The connection that leads to a node: the last over which something was heard of it.
    to: BTreeMap<u32, C>,
    /// The node at the other end.
    owner: HashMap<C, u32>,
}

impl<C> Default for Routes<C> {
    fn default() -> Self {
        Self { to: BTreeMap::new(), owner: HashMap::new() }
    }
}

impl<C: Copy + Eq + Hash> Routes<C> {
    /// A node was heard of over a connection. The first one is at its other end.
    pub fn heard(&mut self, conn: C, node: u32) {
        self.owner.entry(conn).or_insert(node);
        self.to.insert(node, conn);
    }

    /// The connection that leads to a node.
    pub fn to(&self, node: u32) -> Option<C> {
        self.to.get(&node).copied()
    }

    /// The nodes below us.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.to.keys().copied()
    }

    /// The connections to those directly below us.
    pub fn all(&self) -> impl Iterator<Item = C> {
        self.owner.keys().copied()
    }

    /// A node below us is said to be out of reach.
    pub fn forget(&mut self, conn: C, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            if self.to(node) == Some(conn) && self.owner.get(&conn) != Some(&node) {
                self.to.remove(&node);
            }
        }
    }

    /// A connection ended: what it alone led to.
    pub fn closed(&mut self, conn: C) -> Option<Cut> {
        let node = self.owner.remove(&conn)?;
        let behind: Vec<u32> =
            self.to.iter().filter(|(_, c)| **c == conn).map(|(n, _)| *n).collect();
        self.to.retain(|_, c| *c != conn);
        let below = behind.iter().copied().filter(|n| *n != node).collect();
        let node = behind.contains(&node).then_some(node);
        (!behind.is_empty()).then_some(Cut { node, below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_cuts_what_it_alone_led_to() {
        let mut routes = Routes::default();
        routes.heard('a', 1);
        routes.heard('a', 4);
        routes.heard('a', 5);
        routes.heard('b', 2);
        routes.heard('b', 5);
        assert_eq!(routes.closed('a'), Some(Cut { node: Some(1), below: vec![4] }));
        assert_eq!((routes.to(5), routes.to(1)), (Some('b'), None));
        routes.heard('c', 2);
        assert_eq!(routes.closed('b'), Some(Cut { node: None, below: vec![5] }));
        assert_eq!(routes.closed('c'), Some(Cut { node: Some(2), below: vec![] }));
        assert_eq!(routes.closed('c'), None);
    }
}
