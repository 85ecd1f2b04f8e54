//! Panics in calls, and calls that depend on events.

use std::sync::mpsc::channel;
use std::time::Duration;

use regatta_wire::secret::Secret;

use super::*;
use crate::bootstrap::{BootstrapConfig, listen};
use crate::{CallKind, Collectives, Counts, DType, ReduceOp, hierarchical, in_process, one_node};

const RANKS: u32 = 4;
/// The rank whose engine panics.
const VICTIM: u32 = 2;
const CAUSE: &str = "index out of bounds";

/// Panics in the next call.
struct PanickingEngine {
    inner: Option<BoxEngine>,
    has_panicked: bool,
}

impl PanickingEngine {
    fn inner(&self) -> &dyn Engine {
        self.inner.as_deref().unwrap()
    }
}

impl Engine for PanickingEngine {
    fn rank(&self) -> u32 {
        self.inner().rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.inner().peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        if !std::mem::replace(&mut self.has_panicked, true) {
            panic!("{CAUSE}");
        }
        self.inner.as_mut().unwrap().run(call)
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        self.inner.as_mut().unwrap().split(colour, key)
    }

    fn abort_fn(&self) -> AbortFn {
        self.inner().abort_fn()
    }
}

/// Lets the next call of a communicator panic.
fn inject_panic(comm: &Communicator) {
    let mut engine = lock(&comm.shared.engine);
    let panicking = |inner| Box::new(PanickingEngine { inner, has_panicked: false });
    let inner = std::mem::replace(&mut *engine, panicking(None));
    *engine = panicking(Some(inner));
}

/// Ranks on two simulated nodes, over TCP and shared memory.
fn two_nodes(ranks: u32) -> Vec<Communicator> {
    let secret = Secret::generate().unwrap();
    let mut listener = Some(listen("127.0.0.1:0".parse().unwrap()).unwrap());
    let port = listener.as_ref().unwrap().local_addr().unwrap().port();
    let join = |rank| {
        let mut config = BootstrapConfig::new(rank, ranks, "127.0.0.1", port, secret.clone());
        config.node = format!("node{}", rank / 2);
        config.listener = listener.take();
        std::thread::spawn(|| hierarchical::join(config).unwrap())
    };
    let threads: Vec<_> = (0..ranks).map(join).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Runs `calls` on each rank and returns its results, in order of the ranks.
fn on_all_ranks<R: Send + 'static>(
    world: Vec<Communicator>,
    calls: impl Fn(&Communicator) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let spawn = |comm: Communicator| {
        let (calls, (sender, result)) = (calls.clone(), channel());
        std::thread::spawn(move || drop(sender.send(calls(&comm))));
        result
    };
    let results: Vec<_> = world.into_iter().map(spawn).collect();
    // A call that waits forever would leave its thread behind.
    let limit = Duration::from_secs(60);
    results
        .into_iter()
        .map(|result| result.recv_timeout(limit).expect("the call hangs or panics"))
        .collect()
}

fn all_reduce(comm: &Communicator) -> OwnedCall {
    let counts = Counts::Equal(1000);
    OwnedCall::new(CallKind::AllReduce, DType::F32, counts, comm.buffer(4000))
}

/// Asserts that every rank names the victim and the panic, in every call.
fn assert_reported(world: &str, results: Vec<Vec<Result>>) {
    for (rank, results) in results.into_iter().enumerate() {
        for result in results {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(CAUSE), "{world}: rank {rank}: {error}");
            if rank != VICTIM as usize {
                assert_eq!(error.failed_rank(), Some(VICTIM), "{world}: rank {rank}: {error}");
            }
        }
    }
}

/// A constructor of a world.
type World = fn(u32) -> Vec<Communicator>;

const WORLDS: [(&str, World); 3] = [
    ("in process", in_process::world),
    ("shared memory", one_node::world),
    ("two nodes", two_nodes),
];

#[test]
fn a_panic_of_an_asynchronous_call_is_an_error_of_this_and_all_later_calls() {
    for (name, world) in WORLDS {
        let results = on_all_ranks(world(RANKS), |comm| {
            // The abort may come before all ranks have left the barrier.
            let _ = comm.barrier();
            if comm.rank() == VICTIM {
                inject_panic(comm);
            }
            let started = [comm.start(all_reduce(comm)), comm.start(all_reduce(comm))];
            let mut results: Vec<Result> = started.map(|call| call.wait().map(drop)).into();
            results.push(comm.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum));
            results.push(comm.start(all_reduce(comm)).wait().map(drop));
            results
        });
        assert_reported(name, results);
    }
}

#[test]
fn a_panic_of_a_blocking_call_is_an_error_on_every_rank() {
    for (name, world) in WORLDS {
        let results = on_all_ranks(world(RANKS), |comm| {
            // The abort may come before all ranks have left the barrier.
            let _ = comm.barrier();
            if comm.rank() == VICTIM {
                inject_panic(comm);
            }
            vec![comm.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum), comm.barrier()]
        });
        assert_reported(name, results);
    }
}

#[test]
fn calls_run_after_the_events_they_depend_on() {
    for (name, world) in WORLDS {
        let results = on_all_ranks(world(RANKS), |comm| {
            let (written, complete) = Pending::new();
            let first = comm.enqueue(vec![all_reduce(comm)], &[written.event()]);
            // A group runs after the call before it.
            let group = vec![all_reduce(comm), all_reduce(comm)];
            let second = comm.enqueue(group, &[first.event()]);
            assert_eq!(first.event().wait_timeout(Duration::from_millis(10)), Ok(false));
            complete(Ok(Vec::new()));
            assert_eq!(second.wait_group().unwrap().len(), 2);
            first.event().is_complete()
        });
        assert_eq!(results, vec![Ok(true); RANKS as usize], "{name}");
    }
}

#[test]
fn a_failed_dependency_fails_the_call_on_every_rank() {
    for (name, world) in WORLDS {
        let results = on_all_ranks(world(RANKS), |comm| {
            let failed = CommError::system(CAUSE, "of another communicator");
            let is_victim = comm.rank() == VICTIM;
            let after = if is_victim { Err(failed) } else { Ok(()) };
            vec![comm.enqueue(vec![all_reduce(comm)], &[Event::ended(after)]).wait().map(drop)]
        });
        assert_reported(name, results);
    }
}

#[test]
fn an_abort_ends_the_wait_for_an_event() {
    for (name, world) in WORLDS {
        let results = on_all_ranks(world(RANKS), |comm| {
            if comm.rank() == VICTIM {
                comm.abort(CAUSE);
                return vec![Err(CommError::system("aborted", CAUSE))];
            }
            let (never, _complete) = Pending::new();
            let result = comm.enqueue(vec![all_reduce(comm)], &[never.event()]).wait().map(drop);
            vec![result]
        });
        assert_reported(name, results);
    }
}
