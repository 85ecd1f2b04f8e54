//! Every algorithm there is, run by the executor on messages that come in any order, gives what the
//! reference gives.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

#[path = "execute/shuffled.rs"]
mod shuffled;
mod suite;

use proptest::prelude::*;
use regatta_comm::background::{Abort, Background, Engine};
use regatta_comm::error::Peer;
use regatta_comm::execute::{Planner, Room, run_in_segments};
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::choose::Table;
use regatta_comm::transport::Transport;
use regatta_comm::{Call, CommError, DType, Kind, ReduceOp};
use shuffled::Shuffled;

/// Does all by one algorithm, in short segments.
struct ByOne {
    transport: Shuffled,
    planner: Planner,
    room: Room,
    algorithm: Algorithm,
    segment: usize,
}

impl Engine for ByOne {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let program = self.planner.by(&call, self.algorithm)?;
        run_in_segments(&mut self.transport, call, &program, &mut self.room, self.segment)
    }

    fn split(&mut self, _: Option<u32>, _: i64) -> Result<Option<Box<dyn Engine>>, CommError> {
        Ok(None)
    }

    fn abort(&self) -> Abort {
        self.transport.abort()
    }
}

fn world(
    ranks: u32,
    a_node: u32,
    algorithm: Algorithm,
    segment: usize,
    seed: u64,
) -> Vec<Background> {
    let nodes: Vec<u64> = (0..ranks).map(|rank| u64::from(rank / a_node)).collect();
    let table = std::sync::Arc::new(Table::usual());
    let rank = |transport: Shuffled| {
        let planner = Planner::new(table.clone(), transport.rank(), &nodes);
        let room = Room::default();
        Background::new(Box::new(ByOne { transport, planner, room, algorithm, segment }))
    };
    shuffled::world(ranks, seed).into_iter().map(rank).collect()
}

/// All algorithms for a collective.
fn ways(kind: Kind) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.does(kind))
}

/// Counts that the collective takes: of a whole buffer, and of parts, where they may differ.
fn counts(kind: Kind, ranks: u32, each: &[usize]) -> Vec<usize> {
    let parts = [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter];
    let count = |rank: usize| if parts.contains(&kind) { each[rank % each.len()] } else { each[0] };
    (0..ranks as usize).map(count).collect()
}

proptest! {
    // A seed is of no use in a file: it is drawn with all that matters.
    #![proptest_config(ProptestConfig {
        cases: 24, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_algorithm_gives_what_the_reference_gives(
        ranks in 1u32..18,
        a_node in 1u32..6,
        root in 0u32..18,
        each in prop::collection::vec(0usize..40, 1..4),
        segment in prop::sample::select(vec![8usize, 24, 64, 1 << 20]),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        in_place: bool,
        seed: u64,
    ) {
        for kind in Kind::ALL {
            for algorithm in ways(kind) {
                let (sizes, root) = (counts(kind, ranks, &each).into(), root % ranks);
                let case = suite::Case { kind, dtype, op, root, sizes, in_place, seed };
                case.check(world(ranks, a_node, algorithm, segment, seed));
            }
        }
    }
}

#[test]
fn an_all_to_all_in_place_keeps_what_is_still_to_go() {
    for algorithm in ways(Kind::AllToAll) {
        let (kind, dtype, op) = (Kind::AllToAll, DType::I32, ReduceOp::Sum);
        let (sizes, seed) = (suite::Sizes::Equal(7), 0);
        let case = suite::Case { kind, dtype, op, root: 0, sizes, in_place: true, seed };
        case.check(world(5, 2, algorithm, 8, 1));
    }
}

/// The bits, too, are the same whatever comes first: of numbers whose sums depend on their order.
#[test]
fn what_comes_first_does_not_change_a_bit() {
    let sum = |algorithm, seed| {
        let sums = suite::on_all(world(7, 3, algorithm, 16, seed), |comm| {
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
    for algorithm in ways(Kind::AllReduce) {
        let first = sum(algorithm, 1);
        assert!((2..6).all(|seed| sum(algorithm, seed) == first), "{algorithm}");
    }
}
