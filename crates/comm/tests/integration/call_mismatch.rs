//! Call mismatches on every engine, with and without debug mode: all ranks report both calls, and in
//! debug mode before any data moves.

use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{self, BootstrapConfig};
use regatta_comm::shm::CHUNK_BYTES;
use regatta_comm::{Collectives, Comm, CommError, Communicator, ReduceOp, Result, hierarchical};
use regatta_testbed::one_node;

use crate::suite;

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
    one_node::world_with(RANKS, CHUNK_BYTES, |config| {
        (config.debug, config.desync_after) = (debug, DESYNC_AFTER);
    })
}

/// A call and its description. The call returns its result and whether the data is unchanged.
type NamedCall = (fn(&Communicator) -> (Result, bool), &'static str);

const SUM: NamedCall = (|comm| all_reduce(comm, 9, ReduceOp::Sum), "all-reduce of 9 f32, sum");
const BROADCAST: NamedCall = (|comm| broadcast(comm, 1), "broadcast of 5 u8, root 1");

/// The calls of the victim and of the others.
const CASES: [(NamedCall, NamedCall); 8] = [
    ((gather, "all-gather of 4 f32"), SUM),
    ((|comm| (comm.barrier(), true), "barrier"), SUM),
    (BROADCAST, SUM),
    ((|comm| broadcast(comm, 3), "broadcast of 5 u8, root 3"), BROADCAST),
    ((|comm| all_reduce(comm, 10, ReduceOp::Sum), "all-reduce of 10 f32, sum"), SUM),
    ((|comm| all_reduce(comm, 30_000, ReduceOp::Sum), "all-reduce of 30000 f32, sum"), SUM),
    ((other_type, "all-reduce of 9 i32, sum"), SUM),
    (
        (|comm| in_order(comm, [ReduceOp::Max, ReduceOp::Sum]), "all-reduce of 9 f32, max"),
        (|comm| in_order(comm, [ReduceOp::Sum, ReduceOp::Max]), "all-reduce of 9 f32, sum"),
    ),
];

fn all_reduce(comm: &Communicator, count: usize, op: ReduceOp) -> (Result, bool) {
    let mut data = vec![1.0f32; count];
    (comm.all_reduce(&mut data, op), data.iter().all(|v| *v == 1.0))
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
    (minority, _): NamedCall,
    (majority, _): NamedCall,
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

/// The ranks of node n are on host n.
fn check(engine: &str, hosts: [&str; 2], world: &dyn Fn(bool) -> Vec<Communicator>) {
    for (debug, (minority, majority)) in
        [false, true].into_iter().flat_map(|d| CASES.map(|c| (d, c)))
    {
        let start = Instant::now();
        let errors = run_mismatch(world(debug), minority, majority);
        let what = format!("{engine}, debug {debug}, {}", minority.1);
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        for (rank, (error, untouched)) in (0..).zip(&errors) {
            let what = format!("{what}: rank {rank}: {error}");
            let CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } = error
            else {
                panic!("{what}");
            };
            let calls = [ours.to_string(), theirs.to_string()];
            let expected = match rank == VICTIM {
                true => [minority.1, majority.1],
                false => [majority.1, minority.1],
            };
            assert_eq!(calls, expected, "{what}");
            assert_eq!((*sequence, ours_by.rank), (2, rank), "{what}");
            assert_eq!(theirs_by.rank == VICTIM, rank != VICTIM, "{what}");
            assert_eq!(theirs_by.host, hosts[theirs_by.rank as usize / 2], "{what}");
            let both = format!("{ours_by} called {ours}, {theirs_by} called {theirs}");
            assert!(error.to_string().contains(&format!("call 2 of this communicator: {both}")));
            assert!(!debug || *untouched, "{what}");
        }
    }
}

#[test]
fn shared_memory_reports_mismatches() {
    check("shared memory", ["this node"; 2], &shared_memory);
}

#[test]
fn tcp_reports_mismatches() {
    check("TCP", ["node0", "node1"], &|debug| network(debug, bootstrap::join));
}

#[test]
fn hierarchical_reports_mismatches() {
    check("hierarchical", ["node0", "node1"], &|debug| network(debug, hierarchical::join));
}
