//! Pair schedule: a round-robin tournament.

/// Indices of two endpoints, the lower first.
pub type EndpointPair = (usize, usize);

/// Rounds of a round-robin tournament over `ends` endpoints: no endpoint occurs twice in a round,
/// and every pair is in exactly one round.
///
/// Circle method: the last endpoint is fixed, the others rotate, and opposite ones are paired. An
/// odd count has a dummy in the fixed place; its opponent pauses.
pub fn rounds(ends: usize) -> Vec<Vec<EndpointPair>> {
    if ends < 2 {
        return Vec::new();
    }
    let circle = ends.div_ceil(2) * 2 - 1;
    (0..circle).map(|shift| round(ends, circle, shift)).collect()
}

fn round(ends: usize, circle: usize, shift: usize) -> Vec<EndpointPair> {
    let fixed = circle;
    let opposite = (1..=circle / 2).map(|step| {
        let (left, right) = ((shift + step) % circle, (shift + circle - step) % circle);
        (left.min(right), left.max(right))
    });
    let last = (fixed < ends).then_some((shift, fixed));
    last.into_iter().chain(opposite).collect()
}

/// Node-aware rounds: first all intra-node pairs, on all nodes at once; then pairs of nodes, with
/// one rank pair at a time per pair of nodes so that no NIC is shared.
pub fn node_aware_rounds<N: PartialEq>(nodes: &[N]) -> Vec<Vec<EndpointPair>> {
    let ranks_by_node = ranks_by_node(nodes);
    let intra = |own: &Vec<usize>| -> Vec<Vec<EndpointPair>> {
        let round =
            |pairs: Vec<EndpointPair>| pairs.into_iter().map(|(a, b)| (own[a], own[b])).collect();
        rounds(own.len()).into_iter().map(round).collect()
    };
    let mut schedule = zip_schedules(ranks_by_node.iter().map(intra).collect());
    for node_pairs in rounds(ranks_by_node.len()) {
        let one_by_one = |(a, b): EndpointPair| -> Vec<Vec<EndpointPair>> {
            let of = |a: usize| ranks_by_node[b].iter().map(move |b| vec![(a.min(*b), a.max(*b))]);
            ranks_by_node[a].iter().flat_map(|a| of(*a)).collect()
        };
        schedule.extend(zip_schedules(node_pairs.into_iter().map(one_by_one).collect()));
    }
    schedule
}

/// Ranks of each node, in order of first appearance.
pub(super) fn ranks_by_node<N: PartialEq>(nodes: &[N]) -> Vec<Vec<usize>> {
    let mut ranks_by_node: Vec<Vec<usize>> = Vec::new();
    for (end, node) in nodes.iter().enumerate() {
        match ranks_by_node.iter_mut().find(|own| nodes[own[0]] == *node) {
            Some(own) => own.push(end),
            None => ranks_by_node.push(vec![end]),
        }
    }
    ranks_by_node
}

/// Merges schedules with disjoint endpoints.
fn zip_schedules(schedules: Vec<Vec<Vec<EndpointPair>>>) -> Vec<Vec<EndpointPair>> {
    let longest = schedules.iter().map(Vec::len).max().unwrap_or(0);
    let at = |round: usize| schedules.iter().filter_map(move |all| all.get(round)).flatten();
    (0..longest).map(|round| at(round).copied().collect()).collect()
}

/// One pair per round, for shared networks.
pub fn serialize(rounds: Vec<Vec<EndpointPair>>) -> Vec<Vec<EndpointPair>> {
    rounds.into_iter().flatten().map(|pair| vec![pair]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn four_endpoints_take_three_rounds_and_five_take_five() {
        assert_eq!(rounds(4), [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]);
        assert_eq!((rounds(5).len(), rounds(5)[0].len()), (5, 2));
        assert!(rounds(0).is_empty() && rounds(1).is_empty());
    }

    proptest! {
        #[test]
        fn every_pair_occurs_once_and_endpoints_once_per_round(ends in 0usize..130) {
            for schedule in [rounds(ends), serialize(rounds(ends)), node_aware_rounds(&vec![0; ends])] {
                let mut met = BTreeSet::new();
                for round in schedule {
                    let mut busy = BTreeSet::new();
                    for (a, b) in round {
                        prop_assert!(a < b && b < ends);
                        prop_assert!(busy.insert(a) && busy.insert(b), "endpoint twice in a round");
                        prop_assert!(met.insert((a, b)), "pair occurs twice");
                    }
                }
                prop_assert_eq!(met.len(), ends * ends.saturating_sub(1) / 2);
            }
        }

        #[test]
        fn each_node_has_one_inter_node_pair_at_a_time(nodes in prop::collection::vec(0u8..9, 0..40)) {
            let mut met = BTreeSet::new();
            for round in node_aware_rounds(&nodes) {
                let (mut busy, mut outside) = (BTreeSet::new(), BTreeSet::new());
                for &(a, b) in &round {
                    prop_assert!(a < b && busy.insert(a) && busy.insert(b));
                    prop_assert!(met.insert((a, b)), "pair occurs twice");
                    if nodes[a] != nodes[b] {
                        prop_assert!(outside.insert(nodes[a]) && outside.insert(nodes[b]));
                    }
                }
                let intra = round.iter().any(|(a, b)| nodes[*a] == nodes[*b]);
                prop_assert!(!intra || outside.is_empty(), "intra-node and inter-node pairs in one round");
            }
            prop_assert_eq!(met.len(), nodes.len() * nodes.len().saturating_sub(1) / 2);
        }

        #[test]
        fn the_number_of_rounds_is_minimal(ends in 2usize..130) {
            let nodes: Vec<usize> = (0..ends).collect();
            prop_assert_eq!(rounds(ends).len(), ends - 1 + ends % 2);
            prop_assert_eq!(node_aware_rounds(&nodes), rounds(ends));
        }
    }
}
