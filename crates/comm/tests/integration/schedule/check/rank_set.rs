//! Sets of ranks, stored as ranges because they are mostly contiguous.

use std::ops::Range;
use std::rc::Rc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankSet(Rc<Vec<Range<u32>>>);

impl RankSet {
    /// A contiguous set.
    pub fn range(ranks: Range<u32>) -> Self {
        Self(Rc::new(vec![ranks]))
    }

    /// Whether the set is exactly this rank.
    pub fn is_only(&self, rank: u32) -> bool {
        self.0.len() == 1 && self.0[0] == (rank..rank + 1)
    }

    /// The union, and one common element, if any.
    pub fn union(&self, other: &Self) -> (Self, Option<u32>) {
        let (mut a, mut b) = (self.0.as_slice(), other.0.as_slice());
        let mut joined: Vec<Range<u32>> = Vec::with_capacity(a.len() + b.len());
        let mut both = None;
        loop {
            let next = match (a.first(), b.first()) {
                (Some(x), Some(y)) if x.start <= y.start => take(&mut a),
                (_, Some(_)) => take(&mut b),
                (Some(_), None) => take(&mut a),
                (None, None) => break,
            };
            match joined.last_mut() {
                Some(last) if next.start <= last.end => {
                    if next.start < last.end {
                        both = both.or(Some(next.start));
                    }
                    last.end = last.end.max(next.end);
                }
                _ => joined.push(next),
            }
        }
        (Self(Rc::new(joined)), both)
    }
}

fn take(runs: &mut &[Range<u32>]) -> Range<u32> {
    let (first, rest) = runs.split_first().map_or((0..0, [].as_slice()), |(f, r)| (f.clone(), r));
    *runs = rest;
    first
}

/// Formats as `rank 3` or `ranks 0-2, 5`.
impl std::fmt::Display for RankSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runs = self.0.iter().map(|run| match run.len() {
            1 => run.start.to_string(),
            _ => format!("{}-{}", run.start, run.end - 1),
        });
        let runs: Vec<String> = runs.collect();
        let one = self.0.len() == 1 && self.0[0].len() == 1;
        write!(f, "{} {}", if one { "rank" } else { "ranks" }, runs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(mut ranks: Vec<u32>) -> Option<RankSet> {
        ranks.sort_unstable();
        let singles = ranks.into_iter().map(|rank| RankSet::range(rank..rank + 1));
        singles.reduce(|a, b| a.union(&b).0)
    }

    fn members(set: &RankSet) -> Vec<u32> {
        set.0.iter().cloned().flatten().collect()
    }

    proptest! {
        #[test]
        fn union_matches_btree_set(
            a in prop::collection::btree_set(0u32..40, 1..20),
            b in prop::collection::btree_set(0u32..40, 1..20),
        ) {
            let (x, y) = (set(a.iter().copied().collect()), set(b.iter().copied().collect()));
            let (joined, both) = x.unwrap().union(&y.unwrap());
            prop_assert_eq!(members(&joined), a.union(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(both.is_some(), a.intersection(&b).next().is_some());
            prop_assert!(both.is_none_or(|rank| a.contains(&rank) && b.contains(&rank)));
            prop_assert!(joined.0.windows(2).all(|w| w[0].end < w[1].start));
        }
    }

    #[test]
    fn display_shows_ranges() {
        assert_eq!(set(vec![0, 1, 2, 5]).unwrap().to_string(), "ranks 0-2, 5");
        assert_eq!(RankSet::range(3..4).to_string(), "rank 3");
    }
}
