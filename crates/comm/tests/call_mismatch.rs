//! Call mismatches on every engine, with and without debug mode: all ranks report both calls, and in
//! debug mode before any data moves.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod suite;

use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{self, BootstrapConfig};
use regatta_comm::{
    Collectives, Comm, CommError, Communicator, ReduceOp, Result, hierarchical, shm,
};

const RANKS: u32 = 4;

/// The collective timeout.
const DESYNC_AFTER: Duration = Duration::from_millis(400);

/// The rank with the mismatching call.
const VICTIM: u32 = 2;

type Join = fn(BootstrapConfig) -> Result<Communicator>;

/// Ranks on two nodes, connected by `join`.
fn network(debug: bool, join: Join) -> Vec<Communicator> {
    let configure = |config: &mut BootstrapConfig| {
        config.node = format!("node{}", config.rank / 2);
        config.host = config.node.clone();
        (config.desync_after, config.debug) = (DESYNC_AFTER, debug);
    };
    suite::in_parallel(suite::configs(RANKS, configure), |config| join(config).unwrap())
}

fn shared_memory(debug: bool) -> Vec<Communicator> {
    let config = shm::ShmConfig { debug, desync_after: DESYNC_AFTER, ..shm::ShmConfig::default() };
    shm::world_with(RANKS, config).unwrap()
}

/// A call; returns its result and whether the data is unchanged.
type CallFn = fn(&Communicator) -> (Result, bool);

/// The difference, the calls of the victim and of the others, and their descriptions.
const CASES: [(&str, CallFn, CallFn, &str, &str); 5] = [
    ("operation", gather, sum, "all-gather of 4 f32", "all-reduce of 9 f32, sum"),
    ("size", larger, sum, "all-reduce of 30000 f32, sum", "all-reduce of 9 f32, sum"),
    ("type", other_type, sum, "all-reduce of 9 i32, sum", "all-reduce of 9 f32, sum"),
    (
        "root",
        |comm| broadcast(comm, 3),
        |comm| broadcast(comm, 1),
        "broadcast of 5 u8, root 3",
        "broadcast of 5 u8, root 1",
    ),
    (
        "order",
        |comm| in_order(comm, [ReduceOp::Max, ReduceOp::Sum]),
        |comm| in_order(comm, [ReduceOp::Sum, ReduceOp::Max]),
        "all-reduce of 9 f32, max",
        "all-reduce of 9 f32, sum",
    ),
];

fn all_reduce(comm: &Communicator, count: usize, op: ReduceOp) -> (Result, bool) {
    let mut data = vec![1.0f32; count];
    (comm.all_reduce(&mut data, op), data.iter().all(|v| *v == 1.0))
}

fn sum(comm: &Communicator) -> (Result, bool) {
    all_reduce(comm, 9, ReduceOp::Sum)
}

fn larger(comm: &Communicator) -> (Result, bool) {
    all_reduce(comm, 30_000, ReduceOp::Sum)
}

fn other_type(comm: &Communicator) -> (Result, bool) {
    let mut data = [1i32; 9];
    (comm.all_reduce(&mut data, ReduceOp::Sum), data == [1; 9])
}

fn gather(comm: &Communicator) -> (Result, bool) {
    let mut all = [0.0f32; RANKS as usize];
    (comm.all_gather(&[1.0f32], &mut all), all == [0.0; RANKS as usize])
}

fn broadcast(comm: &Communicator, root: u32) -> (Result, bool) {
    let mut data = [comm.rank() as u8; 5];
    (comm.broadcast(&mut data, root), data == [comm.rank() as u8; 5])
}

fn in_order(comm: &Communicator, [first, second]: [ReduceOp; 2]) -> (Result, bool) {
    match all_reduce(comm, 9, first) {
        (Ok(()), _) => all_reduce(comm, 9, second),
        failed => failed,
    }
}

/// The error of every rank, and whether its data is unchanged.
fn run_mismatch(
    world: Vec<Communicator>,
    minority: CallFn,
    majority: CallFn,
) -> Vec<(CommError, bool)> {
    let first_call = std::sync::Barrier::new(RANKS as usize);
    suite::on_all_ranks(world, |comm| {
        comm.barrier().unwrap();
        // A rank that is still in the first call would get the error there.
        first_call.wait();
        let call = if comm.rank() == VICTIM { minority } else { majority };
        let (done, untouched) = call(comm);
        // A rank that completes the mismatching call goes on.
        let next = || (0..100).try_for_each(|_| comm.barrier()).unwrap_err();
        let error = done.err().unwrap_or_else(next);
        // No rank leaves before all have their error.
        std::thread::sleep(Duration::from_millis(100));
        (error, untouched)
    })
}

fn check(engine: &str, world: &dyn Fn(bool) -> Vec<Communicator>) {
    for debug in [false, true] {
        for (what, minority, majority, minority_call, majority_call) in CASES {
            let start = Instant::now();
            let errors = run_mismatch(world(debug), minority, majority);
            assert!(start.elapsed() < Duration::from_secs(15), "{engine}: {what}");
            for (rank, (error, untouched)) in errors.iter().enumerate() {
                let case = format!("{engine}, debug {debug}, {what}: rank {rank}: {error}");
                let CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } = error
                else {
                    panic!("{case}");
                };
                let calls = [ours.to_string(), theirs.to_string()];
                let expected = match rank as u32 == VICTIM {
                    true => [minority_call, majority_call],
                    false => [majority_call, minority_call],
                };
                assert_eq!(calls, expected, "{case}");
                assert_eq!(*sequence, 2, "{case}");
                let named = if rank as u32 == VICTIM { ours_by } else { theirs_by };
                assert_eq!(named.rank, VICTIM, "{case}");
                assert!(!debug || *untouched, "{case}");
            }
        }
    }
}

#[test]
fn shared_memory_reports_mismatches() {
    check("shared memory", &shared_memory);
}

#[test]
fn tcp_reports_mismatches() {
    check("TCP", &|debug| network(debug, bootstrap::join));
}

#[test]
fn hierarchical_reports_mismatches() {
    check("hierarchical", &|debug| network(debug, hierarchical::join));
}
