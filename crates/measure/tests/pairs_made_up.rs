//! Every pair is measured between ranks that are threads, through shared memory and through TCP, on
//! nodes that are made up.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{Settings, listen};
use regatta_comm::{Comm, host};
use regatta_measure::pairs::{Effort, Options, measure};
use regatta_model::bench::Pairs;
use regatta_wire::secret::Secret;

/// Ranks of which each is on the node that is said.
fn world(nodes: &[&str]) -> Vec<Background> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (port, size) = (listener.local_addr().unwrap().port(), nodes.len() as u32);
    let rank = |(rank, node): (u32, &&str)| Settings {
        node: (*node).to_owned(),
        host: (*node).to_owned(),
        join_within: Duration::from_secs(60),
        ..Settings::new(rank, size, "127.0.0.1", port, secret.clone())
    };
    let mut all: Vec<Settings> = (0..).zip(nodes).map(rank).collect();
    all[0].listener = Some(listener);
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(|| host::join(s))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    })
}

fn measured(nodes: &[&str], every_rank: bool) -> Pairs {
    // More at once than any buffer between them holds.
    let effort = Effort { bytes: 3 << 20, messages: 3, repetitions: 2, ..Effort::default() };
    let options = &Options { every_rank, effort, ..Options::default() };
    let world = world(nodes);
    let all: Vec<Option<Pairs>> = std::thread::scope(|scope| {
        let rank = |comm| scope.spawn(move || measure(comm, options, &mut |_, _| {}).unwrap());
        let threads: Vec<_> = world.iter().map(|comm| comm as &dyn Comm).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.into_iter().next().flatten().unwrap()
}

fn is_whole(pairs: &Pairs, ranks: &[u32]) {
    let ends: Vec<u32> = pairs.ends.iter().map(|end| end.rank).collect();
    assert_eq!((ends.as_slice(), pairs.fault()), (ranks, None));
    for matrix in [&pairs.bandwidth, &pairs.latency_us, &pairs.latency_median_us] {
        for (i, row) in matrix.iter().enumerate() {
            for (j, cell) in row.iter().enumerate() {
                assert_eq!(cell.is_some_and(|figure| figure > 0.0), i != j, "{i} to {j}: {cell:?}");
            }
        }
    }
}

#[test]
fn all_ranks_of_one_node() {
    is_whole(&measured(&["a", "a", "a"], false), &[0, 1, 2]);
}

#[test]
fn one_rank_of_each_node_or_all() {
    let nodes = ["a", "a", "b", "b", "c"];
    is_whole(&measured(&nodes, false), &[0, 2, 4]);
    is_whole(&measured(&nodes, true), &[0, 1, 2, 3, 4]);
}
