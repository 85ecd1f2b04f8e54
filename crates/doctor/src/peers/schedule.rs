//! Which node tests which. No I/O.

/// Up to this number of nodes every pair is tested; beyond, each node tests some.
const ALL_PAIRS: usize = 64;

/// The nodes that `own` of `nodes` connects to, its neighbour first.
///
/// Node `a` connects to `a + d` for all distances `d`, so that every node has as many tests as any
/// other and every pair is tested by one of its nodes. In larger jobs the distances are the powers
/// of two: a faulty node fails the tests of all its partners, while a fault of a single pair may
/// remain untested.
pub fn targets(own: usize, nodes: usize) -> Vec<usize> {
    distances(nodes).into_iter().filter_map(|d| target(own, d, nodes)).collect()
}

/// The nodes that connect to `own`.
pub fn sources(own: usize, nodes: usize) -> Vec<usize> {
    let source = |d: usize| (own + nodes - d) % nodes;
    let connects = |d: &usize| target(source(*d), *d, nodes) == Some(own);
    distances(nodes).into_iter().filter(connects).map(source).collect()
}

/// Whether node `own` measures the bandwidth to `target`: only to the next two nodes, so that each NIC
/// carries few streams at a time. With one, a slow node next to a dead one had a single pair.
pub fn measures_bandwidth(own: usize, target: usize, nodes: usize) -> bool {
    (1..=2).any(|distance| (own + distance) % nodes == target)
}

fn distances(nodes: usize) -> Vec<usize> {
    let half = nodes / 2;
    match nodes <= ALL_PAIRS {
        true => (1..=half).collect(),
        false => {
            std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|d| *d <= half).collect()
        }
    }
}

fn target(own: usize, distance: usize, nodes: usize) -> Option<usize> {
    // Half around, both nodes of a pair have the same distance.
    let is_twice = 2 * distance == nodes && own >= distance;
    (!is_twice).then_some((own + distance) % nodes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_come_first() {
        assert_eq!(targets(2, 5), [3, 4]);
        assert_eq!((targets(0, 2), targets(1, 2)), (vec![1], vec![]));
        assert!(targets(0, 1).is_empty() && sources(0, 1).is_empty());
        assert_eq!(targets(999, 1000).len(), 9);
    }

    proptest! {
        #[test]
        fn each_pair_is_tested_once_by_a_node_that_the_other_expects(nodes in 1usize..200) {
            let mut pairs = BTreeSet::new();
            for own in 0..nodes {
                for target in targets(own, nodes) {
                    prop_assert!(target != own && target < nodes);
                    prop_assert!(pairs.insert((own.min(target), own.max(target))), "twice");
                    prop_assert!(sources(target, nodes).contains(&own));
                }
                for source in sources(own, nodes) {
                    prop_assert!(targets(source, nodes).contains(&own));
                }
                let ring = (own + 1) % nodes;
                prop_assert!(nodes == 1 || pairs.contains(&(own.min(ring), own.max(ring))));
            }
            if nodes <= ALL_PAIRS {
                prop_assert_eq!(pairs.len(), nodes * (nodes - 1) / 2);
            }
        }
    }
}
