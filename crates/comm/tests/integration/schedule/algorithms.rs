//! Checks every algorithm for many rank counts.

use regatta_comm::CallKind;
use regatta_comm::schedule::{Algorithm, program};
use regatta_testbed::all_cases;

use super::check::check;
use super::programs;

/// Checks the programs of an algorithm, if it implements the collective.
fn check_programs(kind: CallKind, algorithm: Algorithm, ranks: u32, root: u32, nodes: &[u32]) {
    let Some(programs) = programs(kind, algorithm, ranks, root, nodes) else { return };
    if let Err(error) = check(kind, root, &programs) {
        panic!("{} by {algorithm}, {ranks} ranks, root {root}: {error}", kind.name());
    }
}

fn check_all(ranks: u32, roots: &[u32], nodes: &[u32]) {
    for kind in CallKind::ALL {
        let roots = if kind.has_root() { roots } else { &[0] };
        for algorithm in Algorithm::ALL {
            roots.iter().for_each(|&root| check_programs(kind, algorithm, ranks, root, nodes));
        }
    }
}

/// Algorithms with O(n) rounds.
const LONG: [Algorithm; 3] = [Algorithm::Ring, Algorithm::Pairwise, Algorithm::Direct];

#[test]
fn every_collective_has_an_algorithm() {
    for kind in CallKind::ALL {
        for ranks in [1, 2, 3, 7, 1000] {
            let does = |algorithm: &Algorithm| {
                program(kind, *algorithm, ranks, ranks - 1, ranks / 2, &[]).is_some()
            };
            assert!(Algorithm::ALL.iter().any(does), "{} of {ranks}", kind.name());
            assert!(Algorithm::ALL.iter().all(|a| does(a) == a.does(kind)));
        }
    }
    assert_eq!(program(CallKind::AllReduce, Algorithm::Ring, 4, 4, 0, &[]), None);
    assert_eq!(program(CallKind::Reduce, Algorithm::BinomialTree, 4, 0, 4, &[]), None);
    assert_eq!(program(CallKind::AllReduce, Algorithm::TwoLevel, 4, 0, 0, &[0]), None);
}

#[test]
fn programs_are_correct_for_up_to_33_ranks() {
    for ranks in 1..=33 {
        let all: Vec<u32> = (0..ranks).collect();
        check_all(ranks, &all, &[]);
    }
}

#[test]
fn two_level_programs_are_correct_for_any_node_layout() {
    for ranks in 1..=20 {
        let layouts: [fn(u32) -> u32; 4] = [|r| r / 4, |r| r % 3, |r| r.ilog2(), |r| r];
        for layout in layouts {
            let nodes: Vec<u32> = (0..ranks).map(|r| layout(r + 1)).collect();
            check_all(ranks, &[0, ranks / 2, ranks - 1], &nodes);
        }
    }
}

#[test]
fn programs_are_correct_for_up_to_500_ranks() {
    for ranks in [64, 100, 127, 128] {
        let nodes: Vec<u32> = (0..ranks).map(|r| r / 8).collect();
        check_all(ranks, &[0, ranks - 1], &nodes);
    }
    let nodes: Vec<u32> = (0..255).map(|r| r / 8).collect();
    check_all(255, &[85], &nodes);
    // Those with O(n) rounds are only checked below, because they are the slowest.
    let nodes: Vec<u32> = (0..500).map(|r| r % 50).collect();
    for kind in CallKind::ALL {
        for algorithm in Algorithm::ALL.into_iter().filter(|a| !LONG.contains(a)) {
            check_programs(kind, algorithm, 500, 499, &nodes);
        }
    }
}

/// Split into several tests because they take the longest and can run in parallel. Algorithms with O(n) rounds
/// have 400 ranks, or 1000 in `cargo xtask accept collectives`.
fn check_1000_ranks(kinds: &[CallKind]) {
    for &kind in kinds {
        // The recursive-doubling all-gather is the dissemination all-gather.
        let same = (Algorithm::RecursiveDoubling, CallKind::AllGather);
        for algorithm in Algorithm::ALL.into_iter().filter(|a| (*a, kind) != same) {
            let ranks = if LONG.contains(&algorithm) && !all_cases() { 400 } else { 1000 };
            let nodes: Vec<u32> = (0..ranks).map(|r| r / 8).collect();
            check_programs(kind, algorithm, ranks, 317, &nodes);
        }
    }
}

#[test]
fn reductions_are_correct_for_1000_ranks() {
    use CallKind::{AllReduce, Barrier, Broadcast, Reduce};
    check_1000_ranks(&[AllReduce, Reduce, Broadcast, Barrier]);
}

#[test]
fn gathers_are_correct_for_1000_ranks() {
    check_1000_ranks(&[CallKind::AllGather, CallKind::Gather]);
}

#[test]
fn scatters_are_correct_for_1000_ranks() {
    check_1000_ranks(&[CallKind::ReduceScatter, CallKind::Scatter]);
}

#[test]
fn all_to_all_is_correct_for_1000_ranks() {
    check_1000_ranks(&[CallKind::AllToAll]);
}
