//! The wait graph: finds the root cause when a late rank only waits for another one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Whether a wait is long enough to explain a delay: it must cover at least half of it. A rank with
/// several communicators often waits briefly in one of them.
pub fn explains_delay(waited: Duration, delay: Duration) -> bool {
    waited * 2 >= delay
}

/// The ranks that the missing ones wait for, directly or indirectly, and that wait for no rank
/// themselves. If there are none, the ranks of a cycle (deadlock).
pub fn root_causes(missing: &[u32], waits: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut open: Vec<u32> = missing.to_vec();
    while let Some(rank) = open.pop() {
        found.entry(rank).or_insert_with(|| {
            let next = waits(rank);
            open.extend(&next);
            next
        });
    }
    let sinks = found.iter().filter(|(_, next)| next.is_empty()).map(|(rank, _)| *rank);
    let sinks: Vec<u32> = sinks.collect();
    if sinks.is_empty() { cycle(&found) } else { sinks }
}

/// A strongly connected component without outgoing edges.
fn cycle(waits: &BTreeMap<u32, Vec<u32>>) -> Vec<u32> {
    let mut awaited_by: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, next) in waits {
        next.iter().for_each(|other| awaited_by.entry(*other).or_default().push(*rank));
    }
    // Visits the reverse graph from every rank not yet visited. A rank awaited by the last start was
    // not visited from an earlier one, or the last start would have been visited as well. So it is
    // visited from the last start, that is, it waits for it in turn.
    let mut visited = BTreeSet::new();
    let mut last_start = None;
    for rank in waits.keys() {
        if !visited.contains(rank) {
            last_start = Some(*rank);
            visit(*rank, &awaited_by, &mut visited);
        }
    }
    let mut all = BTreeSet::new();
    last_start.iter().for_each(|rank| visit(*rank, waits, &mut all));
    all.into_iter().collect()
}

/// Adds a rank and all ranks reachable from it.
fn visit(rank: u32, next: &BTreeMap<u32, Vec<u32>>, visited: &mut BTreeSet<u32>) {
    let mut open = vec![rank];
    while let Some(rank) = open.pop() {
        if visited.insert(rank) {
            open.extend(next.get(&rank).into_iter().flatten());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root causes for rank 0 in this wait graph.
    fn for_rank_0(waits: &[(u32, &[u32])]) -> Vec<u32> {
        let of = |rank| waits.iter().find(|(of, _)| *of == rank).map(|(_, next)| next.to_vec());
        root_causes(&[0], |rank| of(rank).unwrap_or_default())
    }

    #[test]
    fn ranks_without_outgoing_edges_are_root_causes() {
        assert_eq!(for_rank_0(&[]), [0]);
        assert_eq!(for_rank_0(&[(0, &[3]), (3, &[1])]), [1]);
        assert_eq!(for_rank_0(&[(0, &[1, 2, 3]), (1, &[2, 3]), (2, &[1, 0])]), [3]);
        assert_eq!(for_rank_0(&[(0, &[1, 2]), (5, &[0])]), [1, 2]);
    }

    #[test]
    fn without_them_a_cycle_is_the_root_cause() {
        assert_eq!(for_rank_0(&[(0, &[1]), (1, &[0])]), [0, 1]);
        // A rank that waits for a cycle is not part of it.
        assert_eq!(for_rank_0(&[(0, &[4, 2]), (4, &[2]), (2, &[3]), (3, &[2])]), [2, 3]);
        assert_eq!(for_rank_0(&[(0, &[4]), (4, &[7]), (7, &[9]), (9, &[4])]), [4, 7, 9]);
    }

    #[test]
    fn short_waits_do_not_explain_a_delay() {
        let second = Duration::from_secs(1);
        assert!(explains_delay(second * 2, second * 4));
        assert!(!explains_delay(second, second * 4));
    }
}
