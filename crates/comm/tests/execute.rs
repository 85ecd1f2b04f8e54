//! Every algorithm matches the reference when executed over a transport that reorders messages.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

#[path = "execute/shuffled_transport.rs"]
mod shuffled_transport;
mod suite;

use proptest::prelude::*;
use regatta_comm::engine::{AbortFn, Engine};
use regatta_comm::error::Peer;
use regatta_comm::execute::{self, Planner, Scratch};
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::algorithm_table::AlgorithmTable;
use regatta_comm::transport::Transport;
use regatta_comm::{Call, CallKind, Communicator, DType, ReduceOp, Result};
use shuffled_transport::ShuffledTransport;

/// Runs every call by one algorithm, with short segments.
struct FixedAlgorithmEngine {
    transport: ShuffledTransport,
    planner: Planner,
    scratch: Scratch,
    algorithm: Algorithm,
    segment: usize,
}

impl Engine for FixedAlgorithmEngine {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        let program = self.planner.plan_with(&call, self.algorithm)?;
        execute::run(&mut self.transport, call, &program, &mut self.scratch, self.segment)
    }

    fn split(&mut self, _: Option<u32>, _: i64) -> Result<Option<Box<dyn Engine>>> {
        Ok(None)
    }

    fn abort_fn(&self) -> AbortFn {
        self.transport.abort_fn()
    }
}

fn world(
    ranks: u32,
    ranks_per_node: u32,
    algorithm: Algorithm,
    segment: usize,
    seed: u64,
) -> Vec<Communicator> {
    let nodes: Vec<u64> = (0..ranks).map(|rank| u64::from(rank / ranks_per_node)).collect();
    let table = std::sync::Arc::new(AlgorithmTable::default());
    let rank = |transport: ShuffledTransport| {
        let planner = Planner::new(table.clone(), transport.rank(), &nodes);
        let scratch = Scratch::default();
        let engine = FixedAlgorithmEngine { transport, planner, scratch, algorithm, segment };
        Communicator::new(Box::new(engine))
    };
    shuffled_transport::world(ranks, seed).into_iter().map(rank).collect()
}

/// The algorithms that implement a collective.
fn algorithms(kind: CallKind) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.does(kind))
}

/// Valid counts for a collective: uniform, or per rank where allowed.
fn counts(kind: CallKind, ranks: u32, each: &[usize]) -> Vec<usize> {
    let parts = [CallKind::AllGather, CallKind::ReduceScatter, CallKind::Gather, CallKind::Scatter];
    let count = |rank: usize| if parts.contains(&kind) { each[rank % each.len()] } else { each[0] };
    (0..ranks as usize).map(count).collect()
}

proptest! {
    // The seed is part of the case, so no failure persistence is needed.
    #![proptest_config(ProptestConfig {
        cases: 24, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_algorithm_matches_the_reference(
        ranks in 1u32..18,
        ranks_per_node in 1u32..6,
        root in 0u32..18,
        each in prop::collection::vec(0usize..40, 1..4),
        segment in prop::sample::select(vec![8usize, 24, 64, 1 << 20]),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        in_place: bool,
        seed: u64,
    ) {
        for kind in CallKind::ALL {
            for algorithm in algorithms(kind) {
                let (sizes, root) = (counts(kind, ranks, &each).into(), root % ranks);
                let case = suite::Case { kind, dtype, op, root, sizes, in_place, seed };
                case.check(world(ranks, ranks_per_node, algorithm, segment, seed));
            }
        }
    }
}

#[test]
fn in_place_all_to_all_does_not_overwrite_unsent_blocks() {
    for algorithm in algorithms(CallKind::AllToAll) {
        let case = suite::Case::sum(CallKind::AllToAll, 7);
        suite::Case { in_place: true, ..case }.check(world(5, 2, algorithm, 8, 1));
    }
}

/// Uses values whose sum depends on the order of summation.
#[test]
fn results_are_bit_identical_for_any_arrival_order() {
    let sum = |algorithm, seed| {
        let sums = suite::on_all_ranks(world(7, 3, algorithm, 16, seed), |comm| {
            use regatta_comm::{Collectives, Comm};
            let own = comm.rank() as f32;
            let given: Vec<f32> = (0..50).map(|i| (own + 0.3).powi(i % 9 - 4) / 7.0).collect();
            let mut sum = vec![0.0f32; 50];
            comm.all_reduce_into(&given, &mut sum, ReduceOp::Sum).unwrap();
            sum.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        });
        assert!(sums.iter().all(|other| *other == sums[0]), "{algorithm}");
        sums.into_iter().next().unwrap()
    };
    for algorithm in algorithms(CallKind::AllReduce) {
        let first = sum(algorithm, 1);
        assert!((2..6).all(|seed| sum(algorithm, seed) == first), "{algorithm}");
    }
}
