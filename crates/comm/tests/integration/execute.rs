//! Programs match the reference when executed over a transport that reorders messages. The checker
//! accepts the programs of every algorithm and rejects those that are wrong.

mod shuffled_transport;

use proptest::prelude::*;
use regatta_comm::engine::{AbortFn, Engine};
use regatta_comm::error::Peer;
use regatta_comm::execute::{self, Scratch};
use regatta_comm::schedule::{Algorithm, Program, ProgramStep};
use regatta_comm::transport::Transport;
use regatta_comm::{Call, CallKind, Communicator, DType, ReduceOp, Result};
use regatta_testbed::Random;
use shuffled_transport::ShuffledTransport;

use crate::schedule::check::check;
use crate::schedule::programs;
use crate::suite::{self, Case, Sizes};

/// Runs every call by one program.
struct ProgramEngine {
    transport: ShuffledTransport,
    program: Program,
    scratch: Scratch,
    segment: usize,
}

impl Engine for ProgramEngine {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        execute::run(&mut self.transport, call, &self.program, &mut self.scratch, self.segment)
    }

    fn split(&mut self, _: Option<u32>, _: i64) -> Result<Option<Box<dyn Engine>>> {
        Ok(None)
    }

    fn abort_fn(&self) -> AbortFn {
        self.transport.abort_fn()
    }
}

fn world(programs: Vec<Program>, segment: usize, seed: u64) -> Vec<Communicator> {
    let transports = shuffled_transport::world(programs.len() as u32, seed);
    let rank = |(transport, program)| {
        let scratch = Scratch::default();
        Communicator::new(Box::new(ProgramEngine { transport, program, scratch, segment }))
    };
    transports.into_iter().zip(programs).map(rank).collect()
}

/// The algorithms that implement a collective.
fn algorithms(kind: CallKind) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.does(kind))
}

/// Valid counts for a collective: uniform, or per rank where allowed.
fn sizes(kind: CallKind, ranks: u32, each: &[usize]) -> Sizes {
    let parts = [CallKind::AllGather, CallKind::ReduceScatter, CallKind::Gather, CallKind::Scatter];
    let count = |rank: usize| if parts.contains(&kind) { each[rank % each.len()] } else { each[0] };
    (0..ranks as usize).map(count).collect::<Vec<_>>().into()
}

/// The node of each of up to 20 ranks: in blocks, or random.
fn nodes() -> impl Strategy<Value = Vec<u32>> {
    let blocks = (1u32..6).prop_map(|per_node| (0..20).map(|rank| rank / per_node).collect());
    prop_oneof![blocks, prop::collection::vec(0u32..4, 20)]
}

/// A collective, a root and the programs of an algorithm that implements it.
fn any_programs() -> impl Strategy<Value = (CallKind, u32, Vec<Program>)> {
    let pairs = CallKind::ALL.into_iter().flat_map(|kind| algorithms(kind).map(move |a| (kind, a)));
    let pairs: Vec<_> = pairs.collect();
    let all = (prop::sample::select(pairs), 2u32..14, 0u32..14, nodes());
    all.prop_map(|((kind, algorithm), ranks, root, nodes)| {
        let (root, nodes) = (root % ranks, &nodes[..ranks as usize]);
        (kind, root, programs(kind, algorithm, ranks, root, nodes).unwrap())
    })
}

/// A mutation of a program. The first four always make it wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mutation {
    Drop,
    Peer,
    Shift,
    Flip,
    Swap,
    Move,
}

const BREAKING: [Mutation; 4] = [Mutation::Drop, Mutation::Peer, Mutation::Shift, Mutation::Flip];

/// Mutates one of the programs, if the mutation applies.
fn mutate(programs: &mut [Program], how: Mutation, rng: &mut Random) -> Option<()> {
    let ranks = programs.len();
    let mut index = |length: usize| rng.below(length.max(1) as u64) as usize;
    let program = &mut programs[index(ranks)];
    let (at, other) = (index(program.rounds.len()), index(program.rounds.len()));
    let step = index(program.rounds.get(at)?.len());
    match how {
        Mutation::Drop => drop(program.rounds[at].remove(step)),
        Mutation::Move => {
            let moved = program.rounds[at].remove(step);
            program.rounds[other].push(moved);
        }
        Mutation::Swap => program.rounds.swap(at, other),
        _ => return mutate_step(&mut program.rounds[at][step], how, ranks as u32, rng),
    }
    Some(())
}

fn mutate_step(step: &mut ProgramStep, how: Mutation, ranks: u32, rng: &mut Random) -> Option<()> {
    use ProgramStep::{Copy, Receive, Send};
    let by = rng.within(1, ranks - 1);
    match (how, step) {
        (Mutation::Peer, Send { to: peer, .. } | Receive { from: peer, .. }) => {
            *peer = (*peer + by) % ranks;
        }
        (
            Mutation::Shift,
            Send { what: range, .. } | Receive { into: range, .. } | Copy { to: range, .. },
        ) if !range.blocks.is_empty() => {
            range.blocks = range.blocks.start + 1..range.blocks.end + 1
        }
        (Mutation::Flip, Receive { reduce, into, .. }) if !into.blocks.is_empty() => {
            *reduce = !*reduce;
        }
        _ => return None,
    }
    Some(())
}

proptest! {
    // The seed is part of the case, so no failure persistence is needed.
    #![proptest_config(ProptestConfig {
        cases: 24, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_algorithm_is_accepted_and_matches_the_reference(
        ranks in 1u32..20,
        nodes in nodes(),
        root in 0u32..20,
        each in prop::collection::vec(0usize..40, 1..4),
        segment in prop::sample::select(vec![8usize, 24, 64, 1 << 20]),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        in_place: bool,
        seed: u64,
    ) {
        let (root, nodes) = (root % ranks, &nodes[..ranks as usize]);
        for kind in CallKind::ALL {
            for algorithm in algorithms(kind) {
                let programs = programs(kind, algorithm, ranks, root, nodes).unwrap();
                prop_assert_eq!(check(kind, root, &programs), Ok(()));
                let sizes = sizes(kind, ranks, &each);
                let case = Case { kind, dtype, op, root, sizes, in_place, seed };
                case.check(world(programs, segment, seed));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn mutated_programs_are_rejected(
        (kind, root, mut programs) in any_programs(),
        how in prop::sample::select(BREAKING.to_vec()),
        seed: u64,
    ) {
        if mutate(&mut programs, how, &mut Random::new(seed)).is_some() {
            prop_assert!(check(kind, root, &programs).is_err());
        }
    }

    /// Some reorderings are valid; an invalid one is never accepted.
    #[test]
    fn reordered_programs_are_rejected_or_correct(
        (kind, root, mut programs) in any_programs(),
        how in prop::sample::select(vec![Mutation::Swap, Mutation::Move]),
        seed: u64,
    ) {
        let mutated = mutate(&mut programs, how, &mut Random::new(seed)).is_some();
        if mutated && check(kind, root, &programs).is_ok() {
            for in_place in [false, true] {
                // Several elements in each of up to 16 equal blocks.
                let sizes = sizes(kind, programs.len() as u32, &[40, 0, 7]);
                let case = Case { root, sizes, in_place, seed, ..Case::sum(kind, 0) };
                case.check(world(programs.clone(), 8, seed));
            }
        }
    }
}

#[test]
fn in_place_all_to_all_does_not_overwrite_unsent_blocks() {
    for algorithm in algorithms(CallKind::AllToAll) {
        let programs = programs(CallKind::AllToAll, algorithm, 5, 0, &[]).unwrap();
        let case = Case::sum(CallKind::AllToAll, 7);
        Case { in_place: true, ..case }.check(world(programs, 8, 1));
    }
}

/// Uses values whose sum depends on the order of summation.
#[test]
fn results_are_bit_identical_for_any_arrival_order() {
    let sum = |algorithm, seed| {
        let nodes = [0, 0, 0, 1, 1, 1, 2];
        let programs = programs(CallKind::AllReduce, algorithm, 7, 0, &nodes).unwrap();
        let sums = suite::on_all_ranks(world(programs, 16, seed), |comm| {
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
