//! The tree in which agents connect.

use serde::{Deserialize, Serialize};

/// A tree over nodes 0, 1, 2…, with at most `fan_out` children each. The coordinator is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Number of nodes.
    pub nodes: u32,
    /// Maximum number of children.
    pub fan_out: u32,
}

impl Tree {
    /// Parent of a node; `None`: the coordinator.
    pub fn parent(self, node: u32) -> Option<u32> {
        (node / self.fan_out.max(1)).checked_sub(1)
    }

    /// Ancestors of a node, parent first, coordinator (`None`) last.
    pub fn ancestors(self, node: u32) -> Vec<Option<u32>> {
        let mut found = vec![self.parent(node)];
        while let Some(Some(last)) = found.last().copied() {
            found.push(self.parent(last));
        }
        found
    }

    /// Whether a node has children.
    pub fn has_children(self, node: u32) -> bool {
        let first = u64::from(self.fan_out.max(1)) * (u64::from(node) + 1);
        first < u64::from(self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_nodes_have_depth_three() {
        let tree = Tree { nodes: 10_000, fan_out: 32 };
        assert_eq!((tree.parent(31), tree.parent(32)), (None, Some(0)));
        assert_eq!(tree.ancestors(9_999).len(), 3);
        assert!(tree.has_children(311) && !tree.has_children(312));
    }

    #[test]
    fn fan_out_is_bounded_and_every_node_reaches_the_root() {
        for fan_out in 1..6 {
            let tree = Tree { nodes: 100, fan_out };
            let mut children = std::collections::HashMap::new();
            for node in 0..tree.nodes {
                *children.entry(tree.parent(node)).or_insert(0) += 1;
                assert_eq!(tree.ancestors(node).last(), Some(&None));
            }
            assert!(children.values().all(|&n| n <= fan_out));
            let parents = (0..tree.nodes).filter(|&n| children.contains_key(&Some(n)));
            assert!(parents.eq((0..tree.nodes).filter(|&n| tree.has_children(n))));
        }
    }
}
