//! Who is to blame that a rank does not come: it may only wait for another, and that for a third.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Tells whom a rank waits for, by their numbers, and how long already.
pub type Waits = Arc<dyn Fn() -> Vec<(u32, Duration)> + Send + Sync>;

/// Whether a wait explains why a rank is waited for since `late`: it must have begun in its first
/// half. A rank that works on several things is often found waiting for something for a moment.
pub fn explains(waited: Duration, late: Duration) -> bool {
    waited * 2 >= late
}

/// Those for whom the missing wait in the end: who wait for nobody, or, if there are none, those who
/// wait for each other in a circle.
pub fn blamed(missing: &[u32], waits: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut open: Vec<u32> = missing.to_vec();
    while let Some(rank) = open.pop() {
        found.entry(rank).or_insert_with(|| {
            let next = waits(rank);
            open.extend(&next);
            next
        });
    }
    let last: Vec<u32> =
        found.iter().filter(|(_, next)| next.is_empty()).map(|(r, _)| *r).collect();
    if last.is_empty() { circle(&found) } else { last }
}

/// Ranks that all wait for each other, and for nobody else.
fn circle(waits: &BTreeMap<u32, Vec<u32>>) -> Vec<u32> {
    let mut awaited_by: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, next) in waits {
        next.iter().for_each(|other| awaited_by.entry(*other).or_default().push(*rank));
    }
    // From each rank to all who wait for it, however far. Whom the last start waits for was not seen
    // from an earlier one, or the last would have been, too; so it is seen from the last, and waits
    // for it in turn.
    let mut seen = BTreeSet::new();
    let mut end = None;
    for rank in waits.keys() {
        if !seen.contains(rank) {
            end = Some(*rank);
            see(*rank, &awaited_by, &mut seen);
        }
    }
    let mut all = BTreeSet::new();
    end.iter().for_each(|rank| see(*rank, waits, &mut all));
    all.into_iter().collect()
}

/// Adds a rank and all that can be come to from it.
fn see(rank: u32, next: &BTreeMap<u32, Vec<u32>>, seen: &mut BTreeSet<u32>) {
    let mut open = vec![rank];
    while let Some(rank) = open.pop() {
        if seen.insert(rank) {
            open.extend(next.get(&rank).into_iter().flatten());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is blamed for rank 0, where these wait.
    fn for_rank_0(waits: &[(u32, &[u32])]) -> Vec<u32> {
        let of =
            |rank: u32| waits.iter().find(|(of, _)| *of == rank).map(|(_, next)| next.to_vec());
        blamed(&[0], |rank| of(rank).unwrap_or_default())
    }

    #[test]
    fn who_waits_for_nobody_is_to_blame() {
        assert_eq!(for_rank_0(&[]), [0]);
        assert_eq!(for_rank_0(&[(0, &[3]), (3, &[1])]), [1]);
        assert_eq!(for_rank_0(&[(0, &[1, 2, 3]), (1, &[2, 3]), (2, &[1, 0])]), [3]);
        assert_eq!(for_rank_0(&[(0, &[1, 2]), (5, &[0])]), [1, 2]);
    }

    #[test]
    fn or_else_a_circle() {
        assert_eq!(for_rank_0(&[(0, &[1]), (1, &[0])]), [0, 1]);
        // Who waits for a circle is not in it.
        assert_eq!(for_rank_0(&[(0, &[4, 2]), (4, &[2]), (2, &[3]), (3, &[2])]), [2, 3]);
        assert_eq!(for_rank_0(&[(0, &[4]), (4, &[7]), (7, &[9]), (9, &[4])]), [4, 7, 9]);
    }

    #[test]
    fn what_is_waited_for_a_moment_explains_nothing() {
        let second = Duration::from_secs(1);
        assert!(explains(second * 2, second * 4));
        assert!(!explains(second, second * 4));
    }
}
