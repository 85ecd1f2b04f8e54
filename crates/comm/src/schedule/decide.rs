//! A table out of what was measured. No I/O.

use super::Algorithm;
use super::choose::{Row, Spread, Table};
use crate::Kind;

/// An algorithm that was best for a size stays for the next one unless another is faster by this
/// much: what is measured is never quite the same twice.
const WORTH_A_CHANGE: f64 = 0.95;

/// What a collective took, the slowest rank's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Which.
    pub collective: Kind,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Of how many bytes, as [`Row::up_to_bytes`] counts them.
    pub bytes: u64,
    /// How long.
    pub seconds: f64,
}

/// The table for ranks like those that measured, and for others what is usual.
pub fn decide(measured: &[Measured], ranks: u32, spread: Spread) -> Table {
    let rows = Kind::ALL.into_iter().flat_map(|kind| {
        let of_kind: Vec<&Measured> = measured.iter().filter(|m| m.collective == kind).collect();
        best(&of_kind).into_iter().map(move |(up_to_bytes, algorithm)| Row {
            collective: kind,
            up_to_bytes,
            up_to_ranks: Some(ranks),
            spread: Some(spread),
            algorithm,
        })
    });
    Table { rows: rows.chain(Table::usual().rows).collect() }
}

/// The best algorithms of one collective, each with the bytes up to which it is.
fn best(measured: &[&Measured]) -> Vec<(Option<u64>, Algorithm)> {
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
            now.is_some_and(|now| first.seconds > now.seconds * WORTH_A_CHANGE)
        };
        if !best.last().is_some_and(stays) {
            if let Some((up_to, _)) = best.last_mut() {
                *up_to = Some(between(last, bytes));
            }
            best.push((None, first.algorithm));
        }
        last = bytes;
    }
    best
}

/// In the middle between two sizes, as sizes go.
fn between(low: u64, high: u64) -> u64 {
    (low.max(1) as f64 * high as f64).sqrt() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(collective: Kind, times: &[(u64, Algorithm, f64)]) -> Vec<Measured> {
        let one = |&(bytes, algorithm, seconds): &(u64, Algorithm, f64)| Measured {
            collective,
            algorithm,
            bytes,
            seconds,
        };
        times.iter().map(one).collect()
    }

    #[test]
    fn the_fastest_is_chosen_and_small_differences_change_nothing() {
        use Algorithm::{RecursiveDoubling as Doubling, Ring};
        let times = [
            (8, Doubling, 1.0),
            (8, Ring, 2.0),
            (1 << 10, Doubling, 2.0),
            (1 << 10, Ring, 1.97),
            (1 << 20, Doubling, 9.0),
            (1 << 20, Ring, 5.0),
        ];
        let table = decide(&measured(Kind::AllReduce, &times), 4, Spread::Apart);
        let choose = |bytes| table.choose(Kind::AllReduce, bytes, 4, 4);
        assert_eq!([choose(0), choose(1 << 10), choose(16 << 10)], [Doubling; 3]);
        assert_eq!([choose(64 << 10), choose(1 << 30)], [Ring; 2]);
    }

    #[test]
    fn what_was_not_measured_is_as_usual() {
        let times = [(8, Algorithm::BinomialTree, 1.0)];
        let table = decide(&measured(Kind::AllReduce, &times), 4, Spread::Apart);
        let usual = Table::usual();
        for (kind, ranks, nodes) in
            [(Kind::AllReduce, 8, 8), (Kind::AllReduce, 4, 1), (Kind::Gather, 4, 4)]
        {
            let (new, old) = (&table, &usual);
            assert_eq!(new.choose(kind, 8, ranks, nodes), old.choose(kind, 8, ranks, nodes));
        }
        assert_eq!(table.choose(Kind::AllReduce, 1 << 30, 3, 3), Algorithm::BinomialTree);
    }
}
