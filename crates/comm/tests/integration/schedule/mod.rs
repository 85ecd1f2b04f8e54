//! Schedules: the programs of every algorithm are verified by symbolic execution, and their cost is
//! simulated.

mod algorithms;
pub mod check;
mod simulate;

use regatta_comm::CallKind;
use regatta_comm::schedule::algorithm_table::AlgorithmTable;
use regatta_comm::schedule::{Algorithm, Program, program};

use simulate::cost;

/// The programs of all ranks.
pub fn programs(
    kind: CallKind,
    algorithm: Algorithm,
    ranks: u32,
    root: u32,
    nodes: &[u32],
) -> Option<Vec<Program>> {
    (0..ranks).map(|rank| program(kind, algorithm, ranks, rank, root, nodes)).collect()
}

#[test]
fn default_selection_is_within_half_of_the_simulated_best() {
    let table = AlgorithmTable::default();
    let mut far: Vec<String> = Vec::new();
    for (ranks, per_node) in [(2, 2), (2, 1), (5, 5), (8, 1), (16, 4), (24, 1), (32, 8)] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank / per_node).collect();
        for kind in CallKind::ALL {
            for bytes in [8, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
                let by = table.select(kind, bytes as u64, ranks, ranks.div_ceil(per_node));
                let seconds = |by: Algorithm| cost(kind, by, bytes, &nodes).seconds;
                let all = Algorithm::ALL.into_iter().filter(|by| by.does(kind));
                let times = all.map(|by| (seconds(by), by));
                let best = times.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                let factor = seconds(by) / best.0;
                if factor > 1.5 {
                    let case = format!("{kind} of {bytes} B on nodes {nodes:?}");
                    far.push(format!("{case}: {by} takes {factor:.2} times {}", best.1));
                }
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
