//! Pairwise measurement between in-process ranks on virtual nodes, over shared memory and TCP.

use std::time::Duration;

use regatta_comm::bootstrap::{BootstrapConfig, listen};
use regatta_comm::communicator::Communicator;
use regatta_comm::{Comm, hierarchical};
use regatta_measure::pairs::{BurstOptions, PairsOptions, measure};
use regatta_model::bench::PairMatrices;
use regatta_wire::secret::Secret;

const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank per entry, on the given virtual node.
fn world(nodes: &[&str]) -> Vec<Communicator> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (port, size) = (listener.local_addr().unwrap().port(), nodes.len() as u32);
    let rank = |(rank, node): (u32, &&str)| {
        let (node, host, join_timeout) = (node.to_string(), node.to_string(), JOIN_TIMEOUT);
        let config = BootstrapConfig::new(rank, size, "127.0.0.1", port, secret.clone());
        BootstrapConfig { node, host, join_timeout, ..config }
    };
    let mut all: Vec<BootstrapConfig> = (0..).zip(nodes).map(rank).collect();
    all[0].listener = Some(listener);
    std::thread::scope(|scope| {
        let join = |config| scope.spawn(|| hierarchical::join(config).unwrap());
        let threads: Vec<_> = all.into_iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn measured(nodes: &[&str], all_ranks: bool) -> PairMatrices {
    // More in flight than any transport buffer holds.
    let (bytes, window, iterations) = (3 << 20, 3, 2);
    let burst = BurstOptions { bytes, window, iterations, ..BurstOptions::default() };
    let options = &PairsOptions { all_ranks, burst, ..PairsOptions::default() };
    let world = world(nodes);
    let all: Vec<Option<PairMatrices>> = std::thread::scope(|scope| {
        let rank = |comm| scope.spawn(move || measure(comm, options, &mut |_, _| {}).unwrap());
        let threads: Vec<_> = world.iter().map(|comm| comm as &dyn Comm).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.into_iter().next().flatten().unwrap()
}

fn assert_all_pairs(pairs: &PairMatrices, ranks: &[u32]) {
    let ends: Vec<u32> = pairs.endpoints.iter().map(|end| end.rank).collect();
    assert_eq!((ends.as_slice(), pairs.inconsistency()), (ranks, None));
    for matrix in [&pairs.bandwidth, &pairs.latency_us, &pairs.latency_median_us] {
        for (i, row) in matrix.iter().enumerate() {
            for (j, cell) in row.iter().enumerate() {
                assert_eq!(cell.is_some_and(|value| value > 0.0), i != j, "{i} to {j}: {cell:?}");
            }
        }
    }
}

#[test]
fn all_ranks_of_a_single_node_are_measured() {
    assert_all_pairs(&measured(&["a", "a", "a"], false), &[0, 1, 2]);
}

#[test]
fn one_rank_per_node_or_all_ranks_are_measured() {
    let nodes = ["a", "a", "b", "b", "c"];
    assert_all_pairs(&measured(&nodes, false), &[0, 2, 4]);
    assert_all_pairs(&measured(&nodes, true), &[0, 1, 2, 3, 4]);
}
