//! Who is measured with whom, and when: a tournament in which everybody meets everybody once.

/// Two of those that are measured, by their places in the order of ends; the lower first.
pub type Pair = (usize, usize);

/// The rounds in which `ends` meet: pairs of one round have no end in common and can be measured at
/// once. Every pair is in exactly one round.
///
/// All stand in a circle but the last; each round the circle turns by one, the ones opposite to each
/// other meet, and the last meets who has nobody opposite. An odd number has somebody who is not
/// there in the last place, and who meets that one rests.
pub fn rounds(ends: usize) -> Vec<Vec<Pair>> {
    if ends < 2 {
        return Vec::new();
    }
    let circle = ends.div_ceil(2) * 2 - 1;
    (0..circle).map(|turn| round(ends, circle, turn)).collect()
}

fn round(ends: usize, circle: usize, turn: usize) -> Vec<Pair> {
    let fixed = circle;
    let opposite = (1..=circle / 2).map(|step| {
        let (left, right) = ((turn + step) % circle, (turn + circle - step) % circle);
        (left.min(right), left.max(right))
    });
    let last = (fixed < ends).then_some((turn, fixed));
    last.into_iter().chain(opposite).collect()
}

/// The rounds in which all meet of whom the nodes are given. First those of a node meet each other,
/// on all nodes at once; then nodes meet, and of two nodes that do one pair at a time, so that no
/// two pairs share what a node has to the network.
pub fn on_nodes<N: PartialEq>(nodes: &[N]) -> Vec<Vec<Pair>> {
    let members = members(nodes);
    let inside = |own: &Vec<usize>| -> Vec<Vec<Pair>> {
        let round = |pairs: Vec<Pair>| pairs.into_iter().map(|(a, b)| (own[a], own[b])).collect();
        rounds(own.len()).into_iter().map(round).collect()
    };
    let mut plan = together(members.iter().map(inside).collect());
    for meeting in rounds(members.len()) {
        let one_by_one = |(a, b): Pair| -> Vec<Vec<Pair>> {
            let of = |a: usize| members[b].iter().map(move |b| vec![(a.min(*b), a.max(*b))]);
            members[a].iter().flat_map(|a| of(*a)).collect()
        };
        plan.extend(together(meeting.into_iter().map(one_by_one).collect()));
    }
    plan
}

/// Those of each node, in the order of their first.
fn members<N: PartialEq>(nodes: &[N]) -> Vec<Vec<usize>> {
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (end, node) in nodes.iter().enumerate() {
        match members.iter_mut().find(|own| nodes[own[0]] == *node) {
            Some(own) => own.push(end),
            None => members.push(vec![end]),
        }
    }
    members
}

/// Plans of which none has an end of another, at once.
fn together(plans: Vec<Vec<Vec<Pair>>>) -> Vec<Vec<Pair>> {
    let longest = plans.iter().map(Vec::len).max().unwrap_or(0);
    let at = |round: usize| plans.iter().filter_map(move |plan| plan.get(round)).flatten();
    (0..longest).map(|round| at(round).copied().collect()).collect()
}

/// The same pairs, each in a round of its own: for networks that pairs would share.
pub fn one_at_a_time(rounds: Vec<Vec<Pair>>) -> Vec<Vec<Pair>> {
    rounds.into_iter().flatten().map(|pair| vec![pair]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn four_meet_in_three_rounds_and_five_in_five() {
        assert_eq!(rounds(4), [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]);
        assert_eq!((rounds(5).len(), rounds(5)[0].len()), (5, 2));
        assert!(rounds(0).is_empty() && rounds(1).is_empty());
    }

    proptest! {
        #[test]
        fn every_pair_meets_once_and_nobody_twice_in_a_round(ends in 0usize..130) {
            for plan in [rounds(ends), one_at_a_time(rounds(ends)), on_nodes(&vec![0; ends])] {
                let mut met = BTreeSet::new();
                for round in plan {
                    let mut busy = BTreeSet::new();
                    for (a, b) in round {
                        prop_assert!(a < b && b < ends);
                        prop_assert!(busy.insert(a) && busy.insert(b), "twice in a round");
                        prop_assert!(met.insert((a, b)), "met twice");
                    }
                }
                prop_assert_eq!(met.len(), ends * ends.saturating_sub(1) / 2);
            }
        }

        #[test]
        fn of_two_nodes_one_pair_at_a_time(nodes in prop::collection::vec(0u8..9, 0..40)) {
            let mut met = BTreeSet::new();
            for round in on_nodes(&nodes) {
                let (mut busy, mut outside) = (BTreeSet::new(), BTreeSet::new());
                for &(a, b) in &round {
                    prop_assert!(a < b && busy.insert(a) && busy.insert(b));
                    prop_assert!(met.insert((a, b)), "met twice");
                    if nodes[a] != nodes[b] {
                        prop_assert!(outside.insert(nodes[a]) && outside.insert(nodes[b]));
                    }
                }
                let inside = round.iter().any(|(a, b)| nodes[*a] == nodes[*b]);
                prop_assert!(!inside || outside.is_empty(), "both at once");
            }
            prop_assert_eq!(met.len(), nodes.len() * nodes.len().saturating_sub(1) / 2);
        }

        #[test]
        fn no_round_is_wasted(ends in 2usize..130) {
            let nodes: Vec<usize> = (0..ends).collect();
            prop_assert_eq!(rounds(ends).len(), ends - 1 + ends % 2);
            prop_assert_eq!(on_nodes(&nodes), rounds(ends));
        }
    }
}
