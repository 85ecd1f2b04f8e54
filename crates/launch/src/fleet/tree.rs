//! The tree in which agents connect: who is above whom.

use serde::{Deserialize, Serialize};

/// Who is above an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Above {
    /// Another agent.
    Node(u32),
    /// The coordinator.
    Root,
}

/// A tree over nodes 0, 1, 2…, each with at most `fan_out` below it; the coordinator is above
/// the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// How many nodes there are.
    pub nodes: u32,
    /// How many connect to one.
    pub fan_out: u32,
}

impl Tree {
    /// Who is directly above a node.
    pub fn above(self, node: u32) -> Above {
        match (node / self.fan_out.max(1)).checked_sub(1) {
            Some(parent) => Above::Node(parent),
            None => Above::Root,
        }
    }

    /// All above a node, the nearest first, the coordinator last.
    pub fn ancestors(self, node: u32) -> Vec<Above> {
        let mut found = vec![self.above(node)];
        while let Some(Above::Node(last)) = found.last().copied() {
            found.push(self.above(last));
        }
        found
    }

    /// Whether any node is below this one.
    pub fn has_below(self, node: u32) -> bool {
        let first = u64::from(self.fan_out.max(1)) * (u64::from(node) + 1);
        first < u64::from(self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_are_three_steps_away() {
        let tree = Tree { nodes: 10_000, fan_out: 32 };
        assert_eq!((tree.above(31), tree.above(32)), (Above::Root, Above::Node(0)));
        assert_eq!(tree.ancestors(9_999).len(), 3);
        assert!(tree.has_below(311) && !tree.has_below(312));
    }

    #[test]
    fn nobody_has_too_many_below_and_all_reach_the_root() {
        for fan_out in 1..6 {
            let tree = Tree { nodes: 100, fan_out };
            let mut below = std::collections::HashMap::new();
            for node in 0..tree.nodes {
                *below.entry(tree.above(node)).or_insert(0) += 1;
                assert_eq!(tree.ancestors(node).last(), Some(&Above::Root));
            }
            assert!(below.values().all(|&n| n <= fan_out));
            let parents = (0..tree.nodes).filter(|&n| below.contains_key(&Above::Node(n)));
            assert!(parents.eq((0..tree.nodes).filter(|&n| tree.has_below(n))));
        }
    }
}
