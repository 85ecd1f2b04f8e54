//! Restart stories on fake ranks in virtual time.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use regatta_discover::{Env, systems};
use regatta_model::result::RankExit;
use regatta_model::run_folder::{EVENTS, Record};
use regatta_model::{AllocatedNode, Allocation, Scheduler};
use regatta_place::environment::Rendezvous;

use super::*;
use crate::config::{AgentOptions, JobSource, PlacementRequest, RankEnvOptions, Workload};
use crate::error::PartError;
use crate::node_pool::PoolUpdate;
use crate::parts::JobPart;
use crate::status::Observers;
use crate::worker_group::{JobEvent, RankControl, WorkerGroup};

/// Time of ranks to exit after a termination signal.
const EXIT_TIME: Duration = Duration::from_secs(1);

/// Virtual time since the start of a story.
#[derive(Clone)]
struct Clock {
    start: Instant,
    elapsed: Rc<Cell<Duration>>,
}

impl Clock {
    fn now(&self) -> Instant {
        self.start + self.elapsed.get()
    }

    fn advance(&self, time: Duration) {
        self.elapsed.set(self.elapsed.get() + time);
    }
}

/// Gets a termination signal at a given time.
struct FakeHost {
    clock: Clock,
    signal_at: Option<Duration>,
    termination: Option<i32>,
}

impl JobHost for FakeHost {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn running_time(&self) -> Instant {
        self.clock.now()
    }

    fn signals(&mut self) -> Vec<i32> {
        let arrives = self.signal_at.take_if(|at| *at <= self.clock.elapsed.get());
        let signal = arrives.map(|_| libc::SIGTERM);
        self.termination = self.termination.or(signal);
        signal.into_iter().collect()
    }

    fn termination(&mut self) -> Option<i32> {
        self.signals();
        self.termination
    }
}

/// How an attempt ends.
#[derive(Clone, Copy)]
enum Fate {
    Success,
    /// The first rank of this node exits with code 7.
    Crash(usize),
    /// This node is lost.
    NodeLost(usize),
    /// The ranks do nothing any more.
    Idle,
    /// A part of the job reports that the ranks poll for a peer.
    Stalled,
}

/// The ranks of an attempt.
struct FakeWorkers {
    clock: Clock,
    events: VecDeque<(Instant, JobEvent)>,
    running: BTreeSet<u32>,
}

impl FakeWorkers {
    fn schedule(&mut self, after: Duration, event: JobEvent) {
        self.events.push_back((self.clock.now() + after, event));
    }

    /// Schedules the exit of all running ranks.
    fn exit_all(&mut self, after: Duration, exit: RankExit) {
        for rank in self.running.clone() {
            self.schedule(after, JobEvent::Exited(rank, exit));
        }
    }

    fn on_event(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Exited(rank, _) => drop(self.running.take(rank)),
            JobEvent::NodeLost { ranks, .. } => self.running.retain(|rank| !ranks.contains(rank)),
            _ => return,
        }
        if self.running.is_empty() {
            self.schedule(Duration::ZERO, JobEvent::Finished);
        }
    }
}

impl WorkerGroup for FakeWorkers {
    fn next(&mut self, timeout: Duration, _: bool) -> Option<JobEvent> {
        let now = self.clock.now();
        let Some((_, event)) = self.events.pop_front_if(|(at, _)| *at <= now) else {
            let next = self.events.front().map(|(at, _)| *at - now);
            self.clock.advance(next.map_or(timeout, |next| next.min(timeout)));
            return None;
        };
        self.on_event(&event);
        Some(event)
    }

    fn control(&mut self, control: RankControl) {
        if let RankControl::Terminate(signal) = control {
            self.events.clear();
            self.exit_all(EXIT_TIME, RankExit::Signal(signal));
        }
    }
}

/// Nodes `node1`, `node2`, ... with a rank each.
struct FakeTarget<'a> {
    config: &'a JobConfig,
    discovery: Discovery,
    /// The attempts to come: how long they run, and how they end.
    fates: VecDeque<(Duration, Fate)>,
    workers: FakeWorkers,
    missing: Vec<usize>,
    /// A node that is lost at this time while it runs no rank.
    loses: Option<(Duration, usize)>,
    /// Time after the start at which the agents of lost nodes have certainly exited.
    agents_exit_at: Option<Duration>,
    /// Nodes and start time of each attempt.
    starts: Vec<(Vec<usize>, f64)>,
}

impl FakeTarget<'_> {
    /// The node that was lost while it ran no rank.
    fn lost_idle_node(&self) -> Option<usize> {
        let now = self.workers.clock.elapsed.get();
        self.loses.filter(|(at, _)| *at <= now).map(|(_, node)| node)
    }
}

impl LaunchTarget for FakeTarget<'_> {
    fn plan(&mut self, attempt: u32, nodes: &[usize]) -> Result<AttemptSpec> {
        self.starts.push((nodes.to_vec(), self.workers.clock.elapsed.get().as_secs_f64()));
        let mut discovery = self.discovery.clone();
        let all = &self.discovery.allocation.nodes;
        discovery.allocation.nodes = nodes.iter().map(|&node| all[node].clone()).collect();
        let job = discovery.plan(&self.config.source, &self.config.placement)?;
        let (address, port) = ("10.0.0.1".to_owned(), 1);
        let (address_why, port_why) = Default::default();
        let rendezvous = Rendezvous { address, address_why, port, port_why };
        AttemptSpec::new(self.config, job, &rendezvous, "run", attempt)
    }

    fn start(
        &mut self,
        attempt: &AttemptSpec,
        _: &mut dyn JobObserver,
    ) -> Result<&mut dyn WorkerGroup> {
        let (hosts, lost) = (self.discovery.hosts(), self.lost_idle_node());
        let placed = &attempt.job.placement.nodes;
        let ranks_of = |node: usize| {
            let node = placed.iter().find(|placed| placed.host == hosts[node]).unwrap();
            node.ranks.clone()
        };
        let workers = &mut self.workers;
        workers.events.clear();
        workers.running = (0..attempt.ranks.len() as u32).collect();
        let (after, fate) = self.fates.pop_front().expect("a further attempt");
        match fate {
            Fate::Success => workers.exit_all(after, RankExit::Exit(0)),
            Fate::Crash(node) => {
                workers.schedule(after, JobEvent::Exited(ranks_of(node)[0], RankExit::Exit(7)));
            }
            Fate::NodeLost(node) => {
                let event = JobEvent::NodeLost { node: node as u32, ranks: ranks_of(node) };
                workers.schedule(after, event);
                self.missing.push(node);
            }
            Fate::Idle => workers.schedule(after, JobEvent::Progress),
            Fate::Stalled => workers.schedule(after, JobEvent::Stalled),
        }
        if let Some(node) = lost.filter(|node| attempt.hosts().contains(&hosts[*node])) {
            let event = JobEvent::NodeLost { node: node as u32, ranks: ranks_of(node) };
            workers.events.clear();
            workers.schedule(Duration::ZERO, event);
        }
        Ok(workers)
    }

    fn poll(&mut self, timeout: Duration) {
        self.workers.clock.advance(timeout);
    }

    fn missing(&self) -> Vec<usize> {
        self.missing.iter().copied().chain(self.lost_idle_node()).collect()
    }

    fn possibly_running(&mut self, lost: &[u32]) -> Vec<usize> {
        let elapsed = self.workers.clock.elapsed.get();
        let exited = self.agents_exit_at.is_some_and(|at| at <= elapsed);
        let lost = lost.iter().map(|&node| node as usize);
        lost.filter(|_| !exited).collect()
    }

    fn shutdown(self: Box<Self>, _: &mut dyn JobObserver) {}
}

/// Records what the caller of a launch learns.
#[derive(Default)]
struct Recorder(Vec<String>);

impl JobObserver for Recorder {
    fn on_status(&mut self, status: &JobStatus<'_>) {
        self.0.extend(match status {
            JobStatus::NodesChanged { update, .. } if **update != PoolUpdate::Unchanged => {
                Some(format!("{update:?}"))
            }
            JobStatus::Restarting { restart, max, delay } => {
                Some(format!("restart {restart} of {max} in {} s", delay.as_secs()))
            }
            JobStatus::Fencing { hosts, remaining } => {
                Some(format!("fence {} for {} s", hosts.join(","), remaining.as_secs()))
            }
            JobStatus::Signal { signal, .. } => Some(format!("signal {signal}")),
            _ => None,
        });
    }
}

/// Collects the records of a job.
#[derive(Default)]
struct Records(Vec<Record>);

impl JobObserver for Records {
    fn on_status(&mut self, status: &JobStatus<'_>) {
        if let JobStatus::Recorded(record) = status {
            self.0.push((*record).clone());
        }
    }
}

/// A job to tell a story of.
struct Story {
    name: &'static str,
    nodes: usize,
    spares: u32,
    min_nodes: Option<u32>,
    max_restarts: u32,
    fates: Vec<(u64, Fate)>,
    agents_exit_at: Option<u64>,
    signal_at: Option<f64>,
    loses: Option<(f64, usize)>,
    hang_timeout: Option<Duration>,
    parts: JobParts<'static>,
}

impl Story {
    fn new(name: &'static str, nodes: usize, fates: Vec<(u64, Fate)>) -> Self {
        Self {
            name,
            nodes,
            spares: 0,
            min_nodes: None,
            max_restarts: 2,
            fates,
            agents_exit_at: None,
            signal_at: None,
            loses: None,
            hang_timeout: None,
            parts: Vec::new(),
        }
    }

    fn config(&self) -> JobConfig {
        JobConfig {
            workload: Workload::Command(vec!["true".into()]),
            source: JobSource::default(),
            placement: PlacementRequest::default(),
            rank_env: RankEnvOptions::default(),
            wrap: None,
            shown_ranks: Vec::new(),
            run_dir: None,
            spares: self.spares,
            min_nodes: self.min_nodes,
            max_restarts: Some(self.max_restarts),
            grace: None,
            hang_timeout: self.hang_timeout,
            heartbeat_timeout: Duration::from_secs(30),
            agents: AgentOptions {
                launcher: None,
                options: Vec::new(),
                ssh: None,
                program: None,
                start_timeout: Duration::from_secs(1),
                fan_out: 32,
            },
        }
    }

    fn discovery(&self) -> Discovery {
        let host = |i| AllocatedNode { host: format!("node{}", i + 1), ranks: None };
        let mut allocation = Allocation::single_node("node1");
        allocation.scheduler = Scheduler::Slurm;
        allocation.nodes = (0..self.nodes).map(host).collect();
        let (machine_index, nics) = Default::default();
        Discovery {
            env: Env::default(),
            machines: vec![systems::system("cpu:1x1x2").unwrap()],
            machine_index,
            nics,
            allocation,
            always_agents: false,
        }
    }

    /// Runs the job.
    fn run(mut self) -> Ending {
        let seconds = Duration::from_secs;
        let (config, discovery) = (self.config(), self.discovery());
        let clock = Clock { start: Instant::now(), elapsed: Rc::default() };
        let signal_at = self.signal_at.map(Duration::from_secs_f64);
        let mut host = FakeHost { clock: clock.clone(), signal_at, termination: None };
        let pool = node_pool(&config, &discovery).unwrap();
        let workers = FakeWorkers { clock, events: VecDeque::new(), running: BTreeSet::new() };
        let mut target = FakeTarget {
            config: &config,
            discovery,
            fates: self.fates.iter().map(|&(after, fate)| (seconds(after), fate)).collect(),
            workers,
            missing: Vec::new(),
            loses: self.loses.map(|(at, node)| (Duration::from_secs_f64(at), node)),
            agents_exit_at: self.agents_exit_at.map(seconds),
            starts: Vec::new(),
        };
        let name = format!("regatta-driver-{}-{}", self.name, std::process::id());
        let path: PathBuf = std::env::temp_dir().join(name);
        let mut folder = RunFolder::create(&path).unwrap();
        let (mut told, mut records) = (Recorder::default(), Records::default());
        let mut observers = Observers::new(vec![&mut told, &mut records]);
        let mut driver = JobDriver {
            config: &config,
            parts: &mut self.parts,
            folder: &mut folder,
            path: path.clone(),
            hosts: target.discovery.hosts(),
            policy: RestartPolicy::new(pool, config.restarts(), config.fence_time()),
            host: &mut host,
            observer: &mut observers,
        };
        let result = driver.run(&mut target).unwrap();
        let excluded = driver.policy.pool.excluded().iter().map(|(node, _)| *node).collect();
        let written = std::fs::read_to_string(path.join(EVENTS)).unwrap();
        let written = written.lines().map(|line| Record::parse(line.as_bytes()).unwrap());
        assert_eq!(written.collect::<Vec<_>>(), records.0, "observers get what is recorded");
        std::fs::remove_dir_all(path).unwrap();
        Ending { result, starts: target.starts, told: told.0, excluded }
    }
}

/// How a story ended.
struct Ending {
    result: RunResult,
    /// Nodes and start time of each attempt.
    starts: Vec<(Vec<usize>, f64)>,
    told: Vec<String>,
    excluded: Vec<usize>,
}

impl Ending {
    fn code(&self) -> u8 {
        self.result.exit_code
    }

    /// The nodes of each attempt.
    fn nodes(&self) -> Vec<&[usize]> {
        self.starts.iter().map(|(nodes, _)| nodes.as_slice()).collect()
    }

    /// Checks that an attempt started about `seconds` after the start of the job.
    fn assert_start(&self, attempt: usize, seconds: f64) {
        let at = self.starts[attempt].1;
        assert!((at - seconds).abs() < 0.5, "attempt {attempt} started at {at}, not {seconds}");
    }
}

#[test]
fn crash_is_restarted_with_backoff_up_to_the_maximum() {
    let crash = (10, Fate::Crash(1));
    let end = Story::new("crash", 2, vec![crash; 3]).run();
    assert_eq!((end.code(), end.result.restarts), (7, 2));
    assert_eq!(end.told, ["restart 1 of 2 in 0 s", "restart 2 of 2 in 1 s"]);
    // Each attempt also waits for the other rank to exit.
    end.assert_start(1, 11.0);
    end.assert_start(2, 23.0);
    assert_eq!(end.nodes(), [[0, 1], [0, 1], [0, 1]]);
}

#[test]
fn job_that_recovers_succeeds() {
    let end = Story::new("recovery", 1, vec![(1, Fate::Crash(0)), (5, Fate::Success)]).run();
    assert_eq!((end.code(), end.result.restarts), (0, 1));
}

#[test]
fn lost_node_is_fenced_before_a_spare_replaces_it() {
    let mut story = Story::new("fence", 3, vec![(100, Fate::NodeLost(1)), (5, Fate::Success)]);
    story.spares = 1;
    let end = story.run();
    assert_eq!((end.code(), &end.excluded[..]), (0, &[1][..]));
    assert_eq!(end.nodes(), [[0, 1], [0, 2]]);
    let replaced = "Changed([Replaced { failed: 1, spare: 2 }])";
    assert_eq!(end.told, [replaced, "restart 1 of 2 in 0 s", "fence node2 for 59 s"]);
    // The heartbeat timeout and the grace period.
    end.assert_start(1, 160.0);
}

#[test]
fn known_exit_of_an_agent_ends_the_fence() {
    let fates = vec![(100, Fate::NodeLost(1)), (5, Fate::Success)];
    let mut story = Story::new("agent-exit", 3, fates);
    (story.spares, story.agents_exit_at) = (1, Some(110));
    let end = story.run();
    assert_eq!(end.code(), 0);
    end.assert_start(1, 110.0);
}

#[test]
fn job_shrinks_to_its_minimum_and_then_gives_up() {
    let fates = vec![(10, Fate::NodeLost(0)), (10, Fate::NodeLost(2))];
    let mut story = Story::new("shrink", 3, fates);
    (story.min_nodes, story.agents_exit_at) = (Some(2), Some(0));
    let end = story.run();
    assert_eq!(end.code(), 137, "as of a lost node");
    assert_eq!(end.nodes(), [&[0, 1, 2][..], &[1, 2]]);
    assert_eq!(end.told[0], "Changed([Dropped { failed: 0 }])");
    let gave_up = end.told.last().unwrap();
    assert!(gave_up.starts_with("GiveUp(\"1 usable node left (2 excluded)"), "{gave_up}");
}

#[test]
fn node_with_two_failures_in_a_row_is_replaced() {
    let crash = (1, Fate::Crash(0));
    let mut story = Story::new("suspect", 2, vec![crash, crash, (1, Fate::Success)]);
    story.spares = 1;
    let end = story.run();
    assert_eq!((end.code(), end.nodes()), (0, vec![&[0][..], &[0], &[1]]));
}

#[test]
fn hung_ranks_are_ended_and_restarted() {
    // Idle for the hang timeout; a part of the job knows by itself that the ranks stall.
    for (fate, ends_after) in [(Fate::Idle, 10.0 + 30.0), (Fate::Stalled, 10.0)] {
        let mut story = Story::new("hang", 2, vec![(10, fate), (5, Fate::Success)]);
        story.hang_timeout = Some(Duration::from_secs(30));
        let end = story.run();
        assert_eq!((end.code(), end.result.restarts), (0, 1));
        assert_eq!(end.told, ["restart 1 of 2 in 0 s"]);
        assert_eq!(end.nodes(), [[0, 1], [0, 1]], "no node is to blame");
        end.assert_start(1, ends_after + EXIT_TIME.as_secs_f64());
    }
}

#[test]
fn job_that_hangs_to_the_last_restart_fails() {
    let mut story = Story::new("hangs", 1, vec![(1, Fate::Idle); 3]);
    story.hang_timeout = Some(Duration::from_secs(30));
    let end = story.run();
    assert_eq!((end.code(), end.result.restarts, end.starts.len()), (124, 2, 3));
    assert!(end.result.hang.is_some() && end.result.failure.is_none());
}

#[test]
fn node_lost_during_the_backoff_is_replaced_by_a_further_restart() {
    let fates = vec![(10, Fate::Crash(1)), (10, Fate::Crash(0)), (9, Fate::Success)];
    let mut story = Story::new("lost-in-backoff", 3, [fates, vec![(5, Fate::Success)]].concat());
    (story.spares, story.max_restarts) = (1, 3);
    // The second attempt ends at 22 s, the back-off at 23 s.
    (story.loses, story.agents_exit_at) = (Some((22.5, 1)), Some(0));
    let end = story.run();
    assert_eq!((end.code(), &end.excluded[..]), (0, &[1][..]));
    assert_eq!(end.nodes(), [[0, 1], [0, 1], [0, 1], [0, 2]]);
    end.assert_start(2, 23.0);
    // The lost node is noticed at once; the other rank exits, and the back-off has doubled.
    end.assert_start(3, 23.0 + 1.0 + 2.0);
    let replaced = "Changed([Replaced { failed: 1, spare: 2 }])";
    assert_eq!(end.told[2..], [replaced, "restart 3 of 3 in 2 s"]);
}

#[test]
fn spare_that_is_lost_before_it_is_needed_is_passed_over() {
    for (spares, expected) in [(2, vec![&[0, 1][..], &[0, 3]]), (1, vec![&[0, 1]])] {
        let fates = vec![(100, Fate::NodeLost(1)), (5, Fate::Success)];
        let mut story = Story::new("lost-spare", 2 + spares as usize, fates);
        (story.spares, story.agents_exit_at) = (spares, Some(0));
        story.loses = Some((50.0, 2));
        let end = story.run();
        assert_eq!(end.nodes(), expected);
        assert_eq!(end.excluded, [1, 2]);
        match spares {
            2 => assert_eq!(end.told[0], "Changed([Replaced { failed: 1, spare: 3 }])"),
            _ => assert!(end.told[0].starts_with("GiveUp(\"1 usable node left (2 excluded)")),
        }
        assert_eq!(end.code(), if spares == 2 { 0 } else { 137 });
    }
}

#[test]
fn signal_during_the_backoff_ends_the_job() {
    let mut story = Story::new("signal", 1, vec![(1, Fate::Crash(0)); 3]);
    story.signal_at = Some(2.5);
    let end = story.run();
    assert_eq!((end.code(), end.starts.len()), (7, 2));
    assert_eq!(end.told.last().unwrap(), "restart 2 of 2 in 1 s");
}

#[test]
fn job_that_a_signal_ended_is_not_restarted() {
    let mut story = Story::new("terminated", 2, vec![(60, Fate::Success)]);
    story.signal_at = Some(5.0);
    let end = story.run();
    assert_eq!((end.code(), end.starts.len()), (143, 1));
    assert_eq!(end.told, ["signal 15"]);
}

/// Fails a running job after some events, or a job that succeeded.
struct FakeCheck {
    fails_running: bool,
}

impl JobPart for FakeCheck {
    fn plan(
        &mut self,
        attempt: &mut AttemptSpec,
        folder: &Path,
    ) -> std::result::Result<(), PartError> {
        assert!(folder.is_absolute() && attempt.number == 0);
        Ok(())
    }

    fn next_event(&mut self, _: bool) -> Option<JobEvent> {
        let fails = std::mem::take(&mut self.fails_running);
        fails.then(|| JobEvent::CheckFailed { why: "wrong network".to_owned() })
    }

    fn conclude(&mut self, _: &RunFolder, result: &mut RunResult) {
        if result.exit_code == 0 {
            (result.exit_code, result.reason) = (1, "no proof".to_owned());
        }
    }
}

#[test]
fn part_fails_a_job_which_is_not_restarted() {
    for (fails_running, reason) in [(true, "wrong network"), (false, "no proof")] {
        let mut story = Story::new("part", 1, vec![(9, Fate::Success)]);
        story.parts = vec![Box::new(FakeCheck { fails_running })];
        let end = story.run();
        assert_eq!((end.code(), end.result.reason.as_str()), (1, reason));
        assert_eq!(end.starts.len(), 1);
    }
}
