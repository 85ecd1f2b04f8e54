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

/// The same pairs, each in a round of its own: for networks that pairs would share.
pub fn one_at_a_time(ends: usize) -> Vec<Vec<Pair>> {
    rounds(ends).into_iter().flatten().map(|pair| vec![pair]).collect()
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
            for plan in [rounds(ends), one_at_a_time(ends)] {
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
        fn no_round_is_wasted(ends in 2usize..130) {
            prop_assert_eq!(rounds(ends).len(), ends - 1 + ends % 2);
        }
    }
}
