//! Attributes faults of pairs to nodes. No I/O.

use std::collections::BTreeMap;

/// A tested pair of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub a: usize,
    pub b: usize,
    pub is_bad: bool,
}

/// Where the faults are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Blame {
    /// Nodes with faults in most of their pairs, and the number of those and of all their pairs.
    pub nodes: Vec<(usize, usize, usize)>,
    /// Bad pairs of nodes that are good otherwise.
    pub pairs: Vec<(usize, usize)>,
}

/// Attributes bad pairs to as few nodes as possible: repeatedly to the node with the most of them,
/// as long as more than half of its pairs are bad and it has several. Of a single pair neither node
/// is known to be at fault.
pub(super) fn blame(edges: &[Edge]) -> Blame {
    let mut remaining: Vec<Edge> = edges.to_vec();
    let mut found = Blame::default();
    loop {
        let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for edge in &remaining {
            for node in [edge.a, edge.b] {
                let (bad, all) = counts.entry(node).or_default();
                *bad += usize::from(edge.is_bad);
                *all += 1;
            }
        }
        // The share first: a node with all pairs bad rather than one with some good pairs.
        let share = |(bad, all): (usize, usize)| bad as f64 / all.max(1) as f64;
        let worst = counts.into_iter().filter(|(_, (bad, _))| *bad > 1).max_by(|(i, x), (j, y)| {
            share(*x).total_cmp(&share(*y)).then(x.0.cmp(&y.0)).then(j.cmp(i))
        });
        let Some((node, (bad, all))) = worst.filter(|(_, (bad, all))| 2 * bad > *all) else {
            break;
        };
        found.nodes.push((node, bad, all));
        remaining.retain(|edge| edge.a != node && edge.b != node);
    }
    found.pairs =
        remaining.iter().filter(|edge| edge.is_bad).map(|edge| (edge.a, edge.b)).collect();
    found.nodes.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All pairs of `nodes`, bad where `is_bad`.
    fn all_pairs(nodes: usize, is_bad: impl Fn(usize, usize) -> bool) -> Vec<Edge> {
        let pairs = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b)));
        pairs.map(|(a, b)| Edge { a, b, is_bad: is_bad(a, b) }).collect()
    }

    #[test]
    fn a_pair_is_not_a_node() {
        let blame_of = |nodes, bad: (usize, usize)| blame(&all_pairs(nodes, |a, b| (a, b) == bad));
        assert_eq!(blame_of(4, (1, 2)), Blame { nodes: vec![], pairs: vec![(1, 2)] });
        assert_eq!(blame_of(2, (0, 1)), Blame { nodes: vec![], pairs: vec![(0, 1)] });
    }

    #[test]
    fn a_slow_node_of_a_ring_is_found() {
        let ring = |slow: usize| {
            (0..5).map(move |a| Edge {
                a,
                b: (a + 1) % 5,
                is_bad: a == slow || (a + 1) % 5 == slow,
            })
        };
        for slow in 0..5 {
            let edges: Vec<Edge> = ring(slow).collect();
            assert_eq!(blame(&edges), Blame { nodes: vec![(slow, 2, 2)], pairs: vec![] });
        }
    }

    proptest! {
        #[test]
        fn isolated_nodes_are_named_and_no_others(
            nodes in 5usize..40, bad in prop::collection::btree_set(0usize..40, 0..3),
        ) {
            let bad: Vec<usize> = bad.into_iter().filter(|node| *node < nodes).collect();
            let edges = all_pairs(nodes, |a, b| bad.contains(&a) || bad.contains(&b));
            let found = blame(&edges);
            prop_assert_eq!(found.nodes.iter().map(|(node, ..)| *node).collect::<Vec<_>>(), bad);
            prop_assert!(found.pairs.is_empty());
        }
    }
}
