//! Selection of the nodes that a job runs on, as nodes fail. No I/O.

use regatta_model::units::pluralize;

/// The nodes of an allocation by index: those the job runs on, spares, and excluded ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePool {
    active: Vec<usize>,
    spares: Vec<usize>,
    excluded: Vec<(usize, String)>,
    min_nodes: usize,
    /// Node of the rank that failed first in the last attempt.
    suspect: Option<usize>,
}

/// The options do not fit the allocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum NodePoolError {
    /// No node is left to run on.
    #[error(
        "--spares {spares} leaves no node for ranks: the allocation has {}; use fewer spares, or \
         allocate more nodes",
        pluralize(*nodes, "node")
    )]
    NoActiveNode { nodes: usize, spares: usize },
    /// The minimum is zero or too large.
    #[error("--min-nodes {min}: expected 1 to {active}, the number of nodes with ranks")]
    InvalidMinimum { min: usize, active: usize },
}

/// What a failure is attributed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCause {
    /// These nodes were lost: their agent died, or the connection to it.
    NodesLost(Vec<usize>),
    /// A rank on this node failed first.
    Rank(usize),
    /// Unknown, for example a hang.
    Unknown,
}

/// The nodes for the next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolUpdate {
    /// The same nodes.
    Unchanged,
    /// Continue with these changes.
    Changed(Vec<NodeChange>),
    /// Too few nodes are left; the text explains it.
    GiveUp(String),
}

/// A change of the nodes that the job runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum NodeChange {
    /// A spare takes the position of a failed node; ranks on other nodes keep their numbers.
    Replaced { failed: usize, spare: usize },
    /// The job continues without a failed node; those after it move up.
    Dropped { failed: usize },
}

impl NodePool {
    /// A job on all nodes but the last `spares`. Without a minimum it never shrinks.
    pub fn new(nodes: usize, spares: usize, min: Option<usize>) -> Result<Self, NodePoolError> {
        let active = nodes.saturating_sub(spares);
        if active == 0 {
            return Err(NodePoolError::NoActiveNode { nodes, spares });
        }
        let min_nodes = min.unwrap_or(active);
        if !(1..=active).contains(&min_nodes) {
            return Err(NodePoolError::InvalidMinimum { min: min_nodes, active });
        }
        Ok(Self {
            active: (0..active).collect(),
            spares: (active..nodes).collect(),
            excluded: Vec::new(),
            min_nodes,
            suspect: None,
        })
    }

    /// The nodes that the job runs on, in rank order.
    pub fn active(&self) -> &[usize] {
        &self.active
    }

    /// The spares, next one first.
    pub fn spares(&self) -> &[usize] {
        &self.spares
    }

    /// Permanently excluded nodes with the reasons.
    pub fn excluded(&self) -> &[(usize, String)] {
        &self.excluded
    }

    /// Selects the nodes for the next attempt after a failure.
    pub fn on_failure(&mut self, cause: FailureCause) -> PoolUpdate {
        let suspect = self.suspect.take();
        match cause {
            FailureCause::NodesLost(nodes) => self.exclude(&nodes, "the node was lost"),
            FailureCause::Unknown => PoolUpdate::Unchanged,
            // A bug in the program may show on any node. Twice in a row on one node suggests the
            // node; but a node that may be good is given up only for a spare.
            FailureCause::Rank(node) if suspect == Some(node) && !self.spares.is_empty() => {
                self.exclude(&[node], "its ranks caused two failures in a row")
            }
            FailureCause::Rank(node) => {
                self.suspect = Some(node);
                PoolUpdate::Unchanged
            }
        }
    }

    /// Excludes nodes permanently.
    pub fn exclude(&mut self, nodes: &[usize], why: &str) -> PoolUpdate {
        // All of them first, so that a spare lost at the same time is not used.
        for &node in nodes {
            let known = self.active.contains(&node) || self.spares.contains(&node);
            if known && !self.is_excluded(node) {
                self.excluded.push((node, why.to_owned()));
                self.spares.retain(|spare| *spare != node);
            }
        }
        let mut failed = self.active.clone();
        failed.retain(|&node| self.is_excluded(node));
        let left = self.active.len() - failed.len().saturating_sub(self.spares.len());
        if failed.is_empty() {
            return PoolUpdate::Unchanged;
        }
        if left < self.min_nodes {
            return PoolUpdate::GiveUp(self.too_few(left));
        }
        PoolUpdate::Changed(failed.into_iter().map(|node| self.replace(node)).collect())
    }

    fn is_excluded(&self, node: usize) -> bool {
        self.excluded.iter().any(|(excluded, _)| *excluded == node)
    }

    fn replace(&mut self, failed: usize) -> NodeChange {
        if self.spares.is_empty() {
            self.active.retain(|node| *node != failed);
            return NodeChange::Dropped { failed };
        }
        let spare = self.spares.remove(0);
        for node in self.active.iter_mut().filter(|node| **node == failed) {
            *node = spare;
        }
        NodeChange::Replaced { failed, spare }
    }

    fn too_few(&self, left: usize) -> String {
        let (needed, excluded) = (self.min_nodes, self.excluded.len());
        let nodes = if left == 1 { "node" } else { "nodes" };
        format!(
            "{left} usable {nodes} left ({excluded} excluded), but the job needs {needed}; use more \
             --spares or a smaller --min-nodes"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lost(nodes: &[usize]) -> FailureCause {
        FailureCause::NodesLost(nodes.to_vec())
    }

    #[test]
    fn lost_node_is_replaced_at_its_position() {
        let mut pool = NodePool::new(6, 2, None).unwrap();
        assert_eq!((pool.active(), pool.spares()), (&[0, 1, 2, 3][..], &[4, 5][..]));
        let update = pool.on_failure(lost(&[1]));
        assert_eq!(update, PoolUpdate::Changed(vec![NodeChange::Replaced { failed: 1, spare: 4 }]));
        assert_eq!(pool.active(), [0, 4, 2, 3]);
        assert_eq!(pool.excluded(), [(1, "the node was lost".to_owned())]);
        assert_eq!(pool.on_failure(lost(&[1])), PoolUpdate::Unchanged, "already excluded");
        assert_eq!(pool.on_failure(lost(&[77])), PoolUpdate::Unchanged, "not in the pool");
    }

    #[test]
    fn without_a_spare_nodes_are_dropped_down_to_the_minimum() {
        let mut pool = NodePool::new(4, 1, Some(2)).unwrap();
        let update = pool.exclude(&[0, 2], "no answer");
        let changes =
            vec![NodeChange::Replaced { failed: 0, spare: 3 }, NodeChange::Dropped { failed: 2 }];
        assert_eq!(update, PoolUpdate::Changed(changes));
        assert_eq!(pool.active(), [3, 1]);
        let PoolUpdate::GiveUp(why) = pool.on_failure(lost(&[3])) else { panic!() };
        assert!(why.contains("1 usable node left (3 excluded), but the job needs 2"), "{why}");
    }

    #[test]
    fn spare_lost_together_with_a_node_does_not_replace_it() {
        let mut pool = NodePool::new(4, 2, None).unwrap();
        let update = pool.on_failure(lost(&[0, 2]));
        assert_eq!(update, PoolUpdate::Changed(vec![NodeChange::Replaced { failed: 0, spare: 3 }]));
        assert_eq!(pool.active(), [3, 1]);
        let mut pool = NodePool::new(3, 1, None).unwrap();
        let update = pool.exclude(&[2], "no answer");
        assert_eq!(update, PoolUpdate::Unchanged, "only a spare is missing");
        assert!(pool.spares().is_empty());
        assert!(matches!(pool.on_failure(lost(&[0])), PoolUpdate::GiveUp(_)));
    }

    #[test]
    fn node_is_excluded_after_two_consecutive_first_failures() {
        let mut pool = NodePool::new(3, 1, None).unwrap();
        use FailureCause::{Rank, Unknown};
        for (i, cause) in [Rank(1), Rank(0), Rank(1), Unknown, Rank(1)].into_iter().enumerate() {
            assert_eq!(pool.on_failure(cause), PoolUpdate::Unchanged, "{i}: not consecutive");
        }
        let update = pool.on_failure(Rank(1));
        assert_eq!(update, PoolUpdate::Changed(vec![NodeChange::Replaced { failed: 1, spare: 2 }]));
        for _ in 0..3 {
            assert_eq!(pool.on_failure(Rank(0)), PoolUpdate::Unchanged, "no spare is left");
        }
    }

    #[test]
    fn invalid_options_are_rejected() {
        let error = |nodes, spares, min| NodePool::new(nodes, spares, min).unwrap_err().to_string();
        assert!(error(2, 2, None).contains("--spares 2 leaves no node for ranks"));
        assert!(error(0, 0, None).contains("--spares 0"));
        assert!(error(4, 1, Some(4)).contains("--min-nodes 4"));
        assert!(error(4, 1, Some(0)).contains("--min-nodes 0: expected 1 to 3, the"));
    }

    fn cause() -> impl Strategy<Value = FailureCause> {
        prop_oneof![
            proptest::collection::vec(0usize..12, 0..4).prop_map(FailureCause::NodesLost),
            (0usize..12).prop_map(FailureCause::Rank),
            Just(FailureCause::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn invariants_hold_for_any_sequence_of_failures(
            nodes in 1usize..10, spares in 0usize..4, min in 1usize..5,
            causes in proptest::collection::vec(cause(), 0..12),
        ) {
            let Ok(mut pool) = NodePool::new(nodes, spares, Some(min)) else { return Ok(()) };
            for cause in causes {
                let before = pool.clone();
                let update = pool.on_failure(cause);
                let mut all: Vec<usize> = [pool.active(), pool.spares()].concat();
                let mut known = all.clone();
                known.extend(pool.excluded().iter().map(|(n, _)| *n));
                known.sort_unstable();
                known.dedup();
                prop_assert_eq!(&known, &(0..nodes).collect::<Vec<_>>(), "every node is accounted for");
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|w| w[0] < w[1]), "duplicate node: {:?}", all);
                prop_assert!(pool.active().len() >= min);
                prop_assert!(pool.excluded().starts_with(before.excluded()), "exclusion is permanent");
                if matches!(update, PoolUpdate::GiveUp(_)) {
                    return Ok(());
                }
                let is_excluded = |n: &usize| pool.excluded().iter().any(|(b, _)| b == n);
                prop_assert!(!pool.active().iter().chain(pool.spares()).any(is_excluded));
                prop_assert_eq!(update == PoolUpdate::Unchanged, pool.active() == before.active());
                if pool.active().len() == before.active().len() {
                    for (old, new) in before.active().iter().zip(pool.active()) {
                        prop_assert!(old == new || is_excluded(old), "usable nodes keep their positions");
                    }
                }
                let common = |of: &NodePool, other: &NodePool| -> Vec<usize> {
                    of.active().iter().copied().filter(|n| other.active().contains(n)).collect()
                };
                prop_assert_eq!(common(&before, &pool), common(&pool, &before), "and their order");
            }
        }
    }
}
