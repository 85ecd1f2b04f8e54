//! Derives an algorithm table from measurements. No I/O.

use super::Algorithm;
use super::algorithm_table::{AlgorithmRow, AlgorithmTable, RankDistribution};
use crate::CallKind;

/// The best algorithm of a smaller size is kept unless another one is faster by this factor,
/// because measurements vary.
const SWITCH_THRESHOLD: f64 = 0.95;

/// Measured time of a collective, maximum over the ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlgorithmTiming {
    /// The collective.
    pub collective: CallKind,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Size, as counted by [`AlgorithmRow::up_to_bytes`].
    pub bytes: u64,
    /// Time per call.
    pub seconds: f64,
}

/// The table for jobs like the measured one; the default table follows for all others.
pub fn fit_table(
    measured: &[AlgorithmTiming],
    ranks: u32,
    spread: RankDistribution,
) -> AlgorithmTable {
    let rows = CallKind::ALL.into_iter().flat_map(|kind| {
        let of_kind: Vec<_> = measured.iter().filter(|m| m.collective == kind).collect();
        best_by_size(&of_kind).into_iter().map(move |(up_to_bytes, algorithm)| AlgorithmRow {
            collective: kind,
            up_to_bytes,
            up_to_ranks: Some(ranks),
            spread: Some(spread),
            algorithm,
        })
    });
    AlgorithmTable { rows: rows.chain(AlgorithmTable::default().rows).collect() }
}

/// The best algorithms of a collective, each with the maximum size it applies to.
fn best_by_size(measured: &[&AlgorithmTiming]) -> Vec<(Option<u64>, Algorithm)> {
    let mut sizes: Vec<u64> = measured.iter().map(|m| m.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut best: Vec<(Option<u64>, Algorithm)> = Vec::new();
    let mut last = 0;
    for &bytes in &sizes {
        let of_size = || measured.iter().filter(|m| m.bytes == bytes && m.seconds.is_finite());
        let Some(first) = of_size().min_by(|a, b| a.seconds.total_cmp(&b.seconds)) else {
            continue;
        };
        let stays = |(_, algorithm): &(Option<u64>, Algorithm)| {
            let now = of_size().find(|m| m.algorithm == *algorithm);
            now.is_some_and(|now| first.seconds > now.seconds * SWITCH_THRESHOLD)
        };
        if !best.last().is_some_and(stays) {
            if let Some((up_to, _)) = best.last_mut() {
                *up_to = Some(geometric_mean(last, bytes));
            }
            best.push((None, first.algorithm));
        }
        last = bytes;
    }
    best
}

/// The geometric mean of two sizes.
fn geometric_mean(low: u64, high: u64) -> u64 {
    (low.max(1) as f64 * high as f64).sqrt() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table from times of an all-reduce on four nodes.
    fn fit(times: &[(u64, Algorithm, f64)]) -> AlgorithmTable {
        let collective = CallKind::AllReduce;
        let times = times.iter().map(|&(bytes, algorithm, seconds)| AlgorithmTiming {
            collective,
            algorithm,
            bytes,
            seconds,
        });
        fit_table(&times.collect::<Vec<_>>(), 4, RankDistribution::OnePerNode)
    }

    #[test]
    fn fastest_algorithm_wins_unless_the_difference_is_small() {
        use Algorithm::{RecursiveDoubling as Doubling, Ring};
        let times = [
            (8, Doubling, 1.0),
            (8, Ring, 2.0),
            (1 << 10, Doubling, 2.0),
            (1 << 10, Ring, 1.97),
            (1 << 20, Doubling, 9.0),
            (1 << 20, Ring, 5.0),
        ];
        let table = fit(&times);
        let choose = |bytes| table.select(CallKind::AllReduce, bytes, 4, 4);
        assert_eq!([choose(0), choose(1 << 10), choose(16 << 10)], [Doubling; 3]);
        assert_eq!([choose(64 << 10), choose(1 << 30)], [Ring; 2]);
    }

    #[test]
    fn unmeasured_cases_use_the_default_table() {
        let times = [(8, Algorithm::BinomialTree, 1.0)];
        let table = fit(&times);
        let usual = AlgorithmTable::default();
        for (kind, ranks, nodes) in
            [(CallKind::AllReduce, 8, 8), (CallKind::AllReduce, 4, 1), (CallKind::Gather, 4, 4)]
        {
            let (new, old) = (&table, &usual);
            assert_eq!(new.select(kind, 8, ranks, nodes), old.select(kind, 8, ranks, nodes));
        }
        assert_eq!(table.select(CallKind::AllReduce, 1 << 30, 3, 3), Algorithm::BinomialTree);
    }
}
