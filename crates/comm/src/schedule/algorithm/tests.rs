//! Every algorithm, proved for many numbers of ranks.

use super::*;
use crate::schedule::check::check;

/// Proves one algorithm, if it does the collective.
fn proves(kind: Kind, algorithm: Algorithm, ranks: u32, root: u32, nodes: &[u32]) {
    let Some(programs) = programs(kind, algorithm, ranks, root, nodes) else { return };
    if let Err(error) = check(kind, root, &programs) {
        panic!("{} by {algorithm}, {ranks} ranks, root {root}: {error}", kind.name());
    }
}

fn every(ranks: u32, roots: &[u32], nodes: &[u32]) {
    for kind in Kind::ALL {
        let roots = if kind.has_root() { roots } else { &[0] };
        for algorithm in Algorithm::ALL {
            roots.iter().for_each(|&root| proves(kind, algorithm, ranks, root, nodes));
        }
    }
}

#[test]
fn every_collective_has_a_program() {
    for kind in Kind::ALL {
        for ranks in [1, 2, 3, 7, 1000] {
            let does = |algorithm: &Algorithm| {
                program(kind, *algorithm, ranks, ranks - 1, ranks / 2, &[]).is_some()
            };
            assert!(Algorithm::ALL.iter().any(does), "{} of {ranks}", kind.name());
            assert!(Algorithm::ALL.iter().all(|a| does(a) == a.does(kind)));
        }
    }
    assert_eq!(program(Kind::AllReduce, Algorithm::Ring, 4, 4, 0, &[]), None);
    assert_eq!(program(Kind::Reduce, Algorithm::BinomialTree, 4, 0, 4, &[]), None);
    assert_eq!(program(Kind::AllReduce, Algorithm::TwoLevel, 4, 0, 0, &[0]), None);
}

#[test]
fn small_numbers_of_ranks() {
    for ranks in 1..=33 {
        let all: Vec<u32> = (0..ranks).collect();
        every(ranks, &all, &[]);
    }
}

#[test]
fn ranks_on_nodes() {
    for ranks in 1..=20 {
        let layouts: [fn(u32) -> u32; 4] = [|r| r / 4, |r| r % 3, |r| r.ilog2(), |r| r];
        for layout in layouts {
            let nodes: Vec<u32> = (0..ranks).map(|r| layout(r + 1)).collect();
            for kind in Kind::ALL {
                for root in [0, ranks / 2, ranks - 1] {
                    proves(kind, Algorithm::TwoLevel, ranks, root, &nodes);
                    proves(kind, Algorithm::TwoLevelWide, ranks, root, &nodes);
                }
            }
        }
    }
}

#[test]
fn more_ranks() {
    for ranks in [64, 100, 127, 128] {
        let nodes: Vec<u32> = (0..ranks).map(|r| r / 8).collect();
        every(ranks, &[0, ranks - 1], &nodes);
    }
    let nodes: Vec<u32> = (0..255).map(|r| r / 8).collect();
    every(255, &[85], &nodes);
    // Those with as many rounds as ranks are tried with a thousand, which costs the most already.
    let long = [Algorithm::Ring, Algorithm::Pairwise, Algorithm::Direct];
    let nodes: Vec<u32> = (0..500).map(|r| r % 50).collect();
    for kind in Kind::ALL {
        for algorithm in Algorithm::ALL.into_iter().filter(|a| !long.contains(a)) {
            proves(kind, algorithm, 500, 499, &nodes);
        }
    }
}

/// In tests of their own, for they take the longest and can go on at the same time.
fn a_thousand(kinds: &[Kind]) {
    let nodes: Vec<u32> = (0..1000).map(|r| r / 8).collect();
    for &kind in kinds {
        // Where dissemination does the same, recursive doubling is dissemination.
        let same = |a: &Algorithm| *a == Algorithm::RecursiveDoubling && kind == Kind::AllGather;
        for algorithm in Algorithm::ALL.into_iter().filter(|a| !same(a)) {
            proves(kind, algorithm, 1000, 617, &nodes);
        }
    }
}

#[test]
fn a_thousand_ranks_reduce() {
    a_thousand(&[Kind::AllReduce, Kind::Reduce, Kind::Broadcast, Kind::Barrier]);
}

#[test]
fn a_thousand_ranks_gather() {
    a_thousand(&[Kind::AllGather, Kind::Gather]);
}

#[test]
fn a_thousand_ranks_scatter() {
    a_thousand(&[Kind::ReduceScatter, Kind::Scatter]);
}

#[test]
fn a_thousand_ranks_exchange() {
    a_thousand(&[Kind::AllToAll]);
}
