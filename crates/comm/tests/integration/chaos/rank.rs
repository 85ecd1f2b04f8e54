//! A rank process: the test program re-executes itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_comm::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, OwnedCall, Pending,
    ReduceOp, Result, bootstrap, hierarchical,
};
use regatta_wire::secret::Secret;
use rustix::process::{Signal, getpid, kill_process};

use super::case::{ChaosCase, ChaosStep, CommKind, Fault, Testbed};
use super::outcome::RankOutcome;
use super::{failed_ranks, running_clock};
use crate::port_file;

/// The environment of a rank process.
pub const SEED: &str = "REGATTA_TEST_SEED";
pub const TESTBED: &str = "REGATTA_TEST_TESTBED";
pub const RANK: &str = "REGATTA_TEST_RANK";
pub const DIRECTORY: &str = "REGATTA_TEST_DIRECTORY";

/// The arguments to run only [`rank_main`].
pub const ARGUMENTS: [&str; 3] = ["--exact", "chaos::rank::rank_main", "--nocapture"];

/// Printed by a rank when its fault is to be injected.
pub const INJECT: &str = "inject";

/// Longer than any call takes.
const LONG: Duration = Duration::from_secs(20);

/// Not a test of its own: the main function of a rank process.
#[test]
fn rank_main() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let testbed =
        if variable(TESTBED) == "Cluster" { Testbed::Cluster } else { Testbed::SingleHost };
    let case = ChaosCase::new(seed.parse().unwrap(), testbed);
    let rank: usize = variable(RANK).parse().unwrap();
    let dir = PathBuf::from(variable(DIRECTORY));
    running_clock::start();
    let before = (count("/proc/self/task", ""), count("/proc/self/fd", "socket"));
    if case.fault == Fault::KilledInBootstrap && rank == case.victim {
        // Rank 0 must have published its port; without it the other ranks do not even connect.
        let port = dir.join("first-port");
        let publishes = rank == 0;
        later(Duration::from_micros(case.after_us * 20), move || {
            while publishes && !port.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            raise(Signal::KILL);
        });
    }
    let mut outcome = match join(&case, rank, &case.all_ranks(), &dir, "first") {
        Ok(world) => RankDriver::new(&case, rank, &dir, world).drive(),
        Err(error) => RankOutcome::of(&error, &case.all_ranks()),
    };
    if outcome.kind.is_some() {
        failed_ranks::publish(&dir, rank);
    }
    if outcome.kind.is_some() && case.survivors().contains(&rank) {
        outcome.rejoin = rejoin(&case, rank, &dir);
    }
    outcome.leaks = leaks(before);
    println!("{}", outcome.write());
}

/// Runs a function after some time on another thread.
fn later(after: Duration, work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        work();
    });
}

fn raise(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

/// The number of directory entries, or of links whose target starts with `prefix`.
fn count(dir: &str, prefix: &str) -> usize {
    let matches = |entry: &std::fs::DirEntry| match prefix {
        "" => true,
        prefix => std::fs::read_link(entry.path())
            .is_ok_and(|to| to.to_string_lossy().starts_with(prefix)),
    };
    std::fs::read_dir(dir).unwrap().flatten().filter(matches).count()
}

/// The threads and sockets left by the communicators, after some time to clean up.
fn leaks(before: (usize, usize)) -> String {
    let until = running_clock::now() + Duration::from_secs(8);
    loop {
        let now = (count("/proc/self/task", ""), count("/proc/self/fd", "socket"));
        if now == before {
            return "none".to_owned();
        }
        if running_clock::now() > until {
            return format!("{now:?} threads and sockets, {before:?} before");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The surviving ranks join again and run an all-reduce.
fn rejoin(case: &ChaosCase, rank: usize, dir: &Path) -> String {
    let world = match join(case, rank, &case.survivors(), dir, "rejoin") {
        Ok(world) => world,
        Err(error) => return error.to_string(),
    };
    let mut sum = vec![1i64; 5000];
    match world.all_reduce(&mut sum, ReduceOp::Sum).and_then(|()| world.barrier()) {
        Ok(()) if sum.iter().all(|v| *v == i64::from(world.size())) => "ok".to_owned(),
        Ok(()) => format!("the sum is {}", sum[0]),
        Err(error) => error.to_string(),
    }
}

/// The heartbeat and collective timeouts. Only the one under test is short.
pub fn timeouts(case: &ChaosCase) -> (Duration, Duration) {
    let (short, long) = (Duration::from_secs(4), LONG);
    match case.fault {
        Fault::Mismatch(_) | Fault::Late => (long, short),
        Fault::Stopped | Fault::Resumed | Fault::NodeCut | Fault::LinkCut { .. } => (short, long),
        Fault::SlowNode | Fault::AllPaused => (short, short),
        _ => (long, long),
    }
}

/// Creates a communicator of these ranks.
fn join(
    case: &ChaosCase,
    rank: usize,
    members: &[usize],
    dir: &Path,
    name: &str,
) -> Result<Communicator> {
    let (lost_after, desync_after) = timeouts(case);
    let in_bootstrap = case.fault == Fault::KilledInBootstrap && name == "first";
    let join_timeout = if in_bootstrap { Duration::from_secs(5) } else { LONG };
    let comm_rank = members.iter().position(|member| *member == rank).unwrap() as u32;
    let secret = std::fs::read_to_string(dir.join(format!("{name}-secret"))).unwrap();
    let file = dir.join(format!("{name}-port"));
    let listener =
        (comm_rank == 0).then(|| bootstrap::listen("0.0.0.0:0".parse().unwrap()).unwrap());
    let master = match case.testbed {
        Testbed::SingleHost => "127.0.0.1".to_owned(),
        Testbed::Cluster => case.host(members[0]),
    };
    let own_port = listener.as_ref().map(|l| l.local_addr().unwrap().port());
    let port = port_file::exchange_port(&file, own_port);
    let secret = Secret::from_hex(&secret).unwrap();
    let config = bootstrap::BootstrapConfig {
        listener,
        host: case.host(rank),
        // Isolates the shared memory of concurrent cases.
        node: format!("{} {}", dir.display(), case.host(rank)),
        join_timeout,
        lost_after,
        desync_after,
        debug: case.debug,
        // Some cases use slots, most read memory.
        cross_memory: Some(!case.debug),
        ..bootstrap::BootstrapConfig::new(comm_rank, members.len() as u32, &master, port, secret)
    };
    match case.comm {
        CommKind::Tcp => bootstrap::join(config),
        // Shared memory is a hierarchical communicator on one node.
        CommKind::Shm | CommKind::Hierarchical => hierarchical::join(config),
    }
}

/// Runs the script of a rank.
struct RankDriver<'a> {
    case: &'a ChaosCase,
    rank: usize,
    dir: &'a Path,
    world: std::sync::Arc<Communicator>,
    split: Option<Box<dyn Comm>>,
    /// Asynchronous calls and the step they were started in.
    pending: Vec<(Pending, usize)>,
    started: Duration,
}

impl<'a> RankDriver<'a> {
    fn new(case: &'a ChaosCase, rank: usize, dir: &'a Path, world: Communicator) -> Self {
        let (world, pending) = (std::sync::Arc::new(world), Vec::new());
        Self { case, rank, dir, world, split: None, pending, started: running_clock::now() }
    }

    /// Runs steps until one fails or the case is over.
    fn drive(&mut self) -> RankOutcome {
        match self.world.split(Some(self.rank as u32 % self.case.colours), 0) {
            Ok(split) => self.split = split,
            Err(error) => {
                let outcome = self.split_outcome(&error);
                return self.abort_all(outcome);
            }
        }
        for number in 0.. {
            let start = running_clock::now();
            match self.run_step(number).and_then(|()| self.should_continue(number)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(outcome) => {
                    let took_ms = (running_clock::now() - start).as_millis() as u64;
                    return self.abort_all(RankOutcome { took_ms, ..*outcome });
                }
            }
        }
        RankOutcome::default()
    }

    /// An error of `split` names ranks of the parent or of the new communicator.
    fn split_outcome(&self, error: &CommError) -> RankOutcome {
        let in_parent = RankOutcome::of(error, &self.case.all_ranks());
        let split = self.case.members(self.rank, ChaosStep { in_split: true, ..self.case.step(0) });
        match in_parent.named.iter().all(|(rank, host)| self.case.is_on(*rank, host)) {
            true => in_parent,
            false => RankOutcome::of(error, &split),
        }
    }

    /// Aborts all communicators, as an application should, so no rank waits for this one.
    fn abort_all(&mut self, outcome: RankOutcome) -> RankOutcome {
        let outcome = outcome.root_cause();
        let why = outcome.to_abort_reason();
        self.world.abort(&why);
        if let Some(split) = &self.split {
            split.abort(&why);
        }
        for (pending, _) in self.pending.drain(..) {
            // The result does not matter.
            let _ = pending.wait();
        }
        self.split = None;
        outcome
    }

    /// Whether to run more steps, decided by rank 0 after each run of the script.
    fn should_continue(&self, number: usize) -> Result<bool, Box<RankOutcome>> {
        if !number.is_multiple_of(self.case.script.len()) {
            return Ok(true);
        }
        let enough = match self.case.fault {
            // The clock stands still during a pause.
            Fault::Paused | Fault::AllPaused => Duration::from_secs(2),
            _ if self.case.may_succeed() => Duration::from_secs(12),
            _ => LONG,
        };
        let more = number < self.case.at + 8 || running_clock::now() - self.started < enough;
        // An all-reduce instead of a broadcast keeps the ranks in step.
        let mut flag = [u8::from(more || self.rank != 0)];
        let done = self.world.all_reduce(&mut flag, ReduceOp::Min);
        done.map_err(|error| Box::new(RankOutcome::of(&error, &self.case.all_ranks())))?;
        Ok(flag[0] != 0)
    }

    fn run_step(&mut self, number: usize) -> Result<(), Box<RankOutcome>> {
        if number == self.case.at {
            self.trigger_fault();
        }
        let step = self.case.step_of(number, self.rank);
        if step.background {
            self.pending.push((self.comm(step).start(owned(step, self.comm(step))), number));
            return if self.pending.len() < 3 { Ok(()) } else { self.wait_pending() };
        }
        let done = match step.kind {
            Some(_) => {
                let mut owned = owned(step, self.comm(step));
                self.comm(step).run(owned.as_call())
            }
            None => ring(self.comm(step), step.count),
        };
        done.map_err(|error| self.outcome(step, &error))?;
        self.wait_pending()
    }

    /// Waits for the asynchronous calls.
    fn wait_pending(&mut self) -> Result<(), Box<RankOutcome>> {
        for (pending, number) in std::mem::take(&mut self.pending) {
            let step = self.case.step_of(number, self.rank);
            pending.wait().map_err(|error| self.outcome(step, &error))?;
        }
        Ok(())
    }

    /// The outcome of a failed step.
    fn outcome(&self, step: ChaosStep, error: &CommError) -> Box<RankOutcome> {
        Box::new(RankOutcome::of(error, &self.case.members(self.rank, step)))
    }

    fn comm(&self, step: ChaosStep) -> &dyn Comm {
        match &self.split {
            Some(split) if step.in_split => split.as_ref(),
            _ => &*self.world,
        }
    }

    /// Triggers the fault of this step, if this rank is the victim.
    fn trigger_fault(&self) {
        let (case, after) = (self.case, Duration::from_micros(self.case.after_us));
        use Fault::{LinkCut, NodeCut, SlowNode};
        if matches!(case.fault, NodeCut | LinkCut { .. } | SlowNode) && self.rank == 0 {
            println!("\n{INJECT}");
        }
        if self.rank != case.victim {
            return;
        }
        match case.fault {
            Fault::Killed => later(after, || raise(Signal::KILL)),
            Fault::Exited => later(after, || std::process::exit(0)),
            Fault::Stopped | Fault::Resumed | Fault::Paused => later(after, || {
                println!("\n{INJECT}");
                raise(Signal::STOP);
            }),
            Fault::AllPaused => later(after, || println!("\n{INJECT}")),
            Fault::Aborted => {
                let world = self.world.clone();
                later(after, move || world.abort("test abort"));
            }
            Fault::Late => failed_ranks::wait_for_others(case, self.dir),
            _ => {}
        }
    }
}

/// The call of a step.
fn owned(step: ChaosStep, comm: &dyn Comm) -> OwnedCall {
    let ChaosStep { dtype, op, root, count, .. } = step;
    let (kind, counts) = (step.kind.unwrap_or(CallKind::Barrier), Counts::Equal(count));
    let has_input = !matches!(kind, CallKind::Broadcast | CallKind::Barrier);
    let empty = Call::new(kind, dtype, counts.clone(), &mut []);
    let empty = Call { root, input: has_input.then_some(&[]), ..empty };
    let (input, output) = empty.lengths(comm.rank() as usize, comm.size() as usize);
    let input = has_input.then(|| comm.buffer(input * dtype.size()));
    let output = comm.buffer(output * dtype.size());
    OwnedCall { op, root, input, ..OwnedCall::new(kind, dtype, counts, output) }
}

/// A ring exchange: sends to the right and receives from the left.
fn ring(comm: &dyn Comm, count: usize) -> Result {
    let (rank, ranks) = (comm.rank(), comm.size());
    let data = vec![rank as u8; count];
    let mut got = vec![0; count];
    let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let send = Call::new(CallKind::Send, DType::U8, Counts::Equal(count), &mut []);
    let receive = Call::new(CallKind::Receive, DType::U8, Counts::Equal(count), &mut got);
    comm.run_group(vec![
        Call { root: right, tag: 7, input: Some(&data), ..send },
        Call { root: left, tag: 7, ..receive },
    ])?;
    assert!(got.iter().all(|byte| *byte == left as u8));
    Ok(())
}
