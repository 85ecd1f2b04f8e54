//! Runs one attempt of a job: handles the events of its ranks, carries out the supervisor's
//! actions, and reports the outcome.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use regatta_model::result::{RankExit, RankFailure, RunResult, STOPPED_EARLY};
use regatta_model::run_folder::{Record, RunEvent, RunKind};

use crate::attempt::AttemptSpec;
use crate::config::JobConfig;
use crate::job_host::JobHost;
use crate::lines::{LineMerger, MergedLine};
use crate::process::StartError;
use crate::reaper;
use crate::run_folder::RunFolder;
use crate::signal_dedup::{NodeSignalDedup, SignalSource};
use crate::status::{FrameRecord, JobObserver, JobStatus};
use crate::supervisor::{Supervisor, SupervisorInput};
use crate::worker_group::{JobEvent, RankControl, WorkerGroup};

/// Outcome of an attempt.
#[derive(Debug)]
pub struct AttemptOutcome {
    /// For the run folder.
    pub result: RunResult,
    /// Indices of lost nodes.
    pub lost_nodes: Vec<u32>,
    /// When the last of them was declared lost.
    pub node_lost_at: Option<Instant>,
    /// Whether the user or the scheduler sent a termination signal.
    pub terminated: bool,
}

/// Time that a line waits for identical lines of other ranks.
const MERGE_WINDOW: Duration = Duration::from_millis(100);
/// Interval of timeout and signal checks when idle.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of lines shown at a time: a flood must delay neither events nor heartbeats.
const MAX_LINES_SHOWN: usize = 256;
/// Pause before a slow reader of the output is tried again.
const OUTPUT_BACKOFF: Duration = Duration::from_millis(2);
/// Interval of signal checks under load: each check is a system call.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(5);
/// Exit of a rank that could not be started.
const START_FAILED: RankExit = RankExit::Exit(StartError::EXIT_CODE as i32);

struct AttemptDriver<'a> {
    config: &'a JobConfig,
    attempt: &'a AttemptSpec,
    workers: &'a mut dyn WorkerGroup,
    folder: &'a mut RunFolder,
    host: &'a mut dyn JobHost,
    supervisor: Supervisor,
    lines: LineMerger,
    tails: BTreeMap<u32, Vec<String>>,
    rank_states: BTreeMap<u32, String>,
    lost_nodes: Vec<u32>,
    node_lost_at: Option<Instant>,
    /// Cause of the first failure, where more is known than the rank's exit.
    cause: Option<String>,
    warnings: Vec<String>,
    signals: NodeSignalDedup,
    /// Records that the observer has not been notified of.
    recorded: Vec<Record>,
    /// Signals that the observer has not been notified of.
    unobserved: Vec<i32>,
    killing: bool,
    start: Instant,
}

/// Runs one attempt of a job until it is finished. `host` may hold earlier signals.
pub fn run(
    config: &JobConfig,
    attempt: &AttemptSpec,
    workers: &mut dyn WorkerGroup,
    folder: &mut RunFolder,
    host: &mut dyn JobHost,
    observer: &mut dyn JobObserver,
) -> AttemptOutcome {
    let ranks = attempt.ranks.len() as u32;
    let mut driver = AttemptDriver {
        supervisor: Supervisor::new(ranks, config.limits(), host.running_time()),
        lines: LineMerger::new(MERGE_WINDOW),
        tails: BTreeMap::new(),
        rank_states: BTreeMap::new(),
        lost_nodes: Vec::new(),
        node_lost_at: None,
        cause: None,
        warnings: Vec::new(),
        signals: NodeSignalDedup::default(),
        recorded: Vec::new(),
        unobserved: Vec::new(),
        killing: false,
        start: host.now(),
        config,
        attempt,
        workers,
        folder,
        host,
    };
    let command = config.workload.user_command();
    let kind = config.workload.own_ranks().map_or(RunKind::Launch, |ranks| ranks.kind);
    let launched = RunEvent::Launched { attempt: attempt.number, command, kind: Some(kind) };
    driver.record(None, launched);
    driver.run(observer);
    driver.outcome()
}

/// Calls an observer, which may block on a stopped terminal: that is not a hang.
fn may_block<T>(call: impl FnOnce() -> T) -> T {
    reaper::suspend_heartbeats();
    let returned = call();
    reaper::heartbeat();
    returned
}

impl AttemptDriver<'_> {
    fn run(&mut self, observer: &mut dyn JobObserver) {
        let mut last_check: Option<Instant> = None;
        let mut unshown: VecDeque<MergedLine> = VecDeque::new();
        let (mut finished, mut stopping) = (false, false);
        // At the end the reader of the output may take any time to read it. Meanwhile the agents
        // need heartbeats, and the user may interrupt.
        while !(finished && unshown.is_empty() && observer.flush()) {
            // A slow reader pauses the ranks' output and nothing else.
            let paused = finished || !unshown.is_empty();
            let wait = if paused || stopping { OUTPUT_BACKOFF } else { TICK };
            let event = self.workers.next(wait, paused);
            let exits = matches!(event, Some(JobEvent::Finished | JobEvent::Exited(..)));
            finished |= event == Some(JobEvent::Finished);
            // Before an exit is handled: a rank killed by the same signal did not fail.
            if exits || last_check.is_none_or(|at| self.since(at) >= SIGNAL_INTERVAL) {
                for signal in self.host.signals() {
                    self.on_signal(signal, SignalSource::Launcher);
                }
                last_check = Some(self.host.now());
            }
            match event {
                Some(JobEvent::Frame { rank, bytes }) => {
                    self.supervise(SupervisorInput::Progress);
                    let mut record = FrameRecord::default();
                    may_block(|| observer.on_frame(rank, &bytes, &mut record));
                    self.append_log(rank, false, record.log.as_bytes());
                    record.event.into_iter().for_each(|event| self.record(Some(rank), event));
                }
                Some(JobEvent::Notice(text)) => {
                    may_block(|| observer.on_status(&JobStatus::Notice(&text)));
                }
                Some(event) => self.on_event(event),
                None => {}
            }
            // A rank that waits for a slow reader does not hang.
            if paused {
                self.supervise(SupervisorInput::Progress);
            }
            self.supervise(SupervisorInput::Tick);
            for record in self.recorded.drain(..) {
                may_block(|| observer.on_status(&JobStatus::Recorded(&record)));
            }
            let killing = self.killing;
            for signal in self.unobserved.drain(..) {
                may_block(|| observer.on_status(&JobStatus::Signal { signal, killing }));
                stopping |= signal == libc::SIGTSTP;
            }
            if stopping && observer.is_idle() {
                reaper::confirm_stop();
                stopping = false;
            }
            match finished {
                true => unshown.extend(self.lines.finish()),
                false => {
                    let space = MAX_LINES_SHOWN.saturating_sub(unshown.len());
                    unshown.extend(self.lines.ready_up_to(self.host.now(), space));
                }
            }
            if !unshown.is_empty() {
                may_block(
                    || while unshown.pop_front_if(|line| observer.on_line(line)).is_some() {},
                );
            }
        }
        // What follows waits for the terminal and the file system.
        reaper::suspend_heartbeats();
    }

    fn on_event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Started { rank, pid } => self.record(Some(rank), RunEvent::Started { pid }),
            JobEvent::Line(line) => {
                self.supervise(SupervisorInput::Progress);
                self.lines.push(line, self.host.now());
            }
            // The rank's node does not see the run folder.
            JobEvent::Output { rank, stderr, bytes } => {
                self.append_log(rank, stderr, &bytes);
            }
            JobEvent::Progress => self.supervise(SupervisorInput::Progress),
            JobEvent::Exited(rank, exit) => {
                self.record(Some(rank), RunEvent::Exited { exit });
                self.supervise(SupervisorInput::Exited(rank, exit));
            }
            JobEvent::LostPeer { rank, peer } => {
                self.record(Some(rank), RunEvent::LostPeer { peer });
                self.supervise(SupervisorInput::LostPeer(rank, peer));
            }
            JobEvent::OutputTail(rank, lines) => drop(self.tails.insert(rank, lines)),
            JobEvent::RankStates(states) => self.rank_states.extend(states),
            JobEvent::Signal(signal) => self.on_signal(signal, SignalSource::Agent),
            JobEvent::ConnectionLost { rank, why } => {
                self.record(None, RunEvent::ConnectionLost { why: why.clone() });
                self.set_cause(why);
                self.supervise(SupervisorInput::ConnectionLost(rank));
            }
            JobEvent::NodeLost { node, ranks } => {
                self.lost_nodes.push(node);
                self.node_lost_at = Some(self.host.now());
                self.record(None, RunEvent::NodeLost { ranks: ranks.clone() });
                let lost = |rank| SupervisorInput::Exited(rank, RankExit::NodeLost);
                ranks.into_iter().for_each(|rank| self.supervise(lost(rank)));
            }
            JobEvent::StartFailed { rank, why } => {
                self.set_cause(why);
                self.supervise(SupervisorInput::Exited(rank, START_FAILED));
            }
            JobEvent::CheckFailed { why } => {
                self.record(None, RunEvent::CheckFailed { why: why.clone() });
                self.set_cause(why);
                self.supervise(SupervisorInput::CheckFailed);
            }
            JobEvent::Stalled => {
                let was_hung = self.supervisor.hang.is_some();
                self.supervise(SupervisorInput::Stalled);
                if let (Some(why), false) = (self.supervisor.hang.clone(), was_hung) {
                    self.record(None, RunEvent::Stalled { why });
                }
            }
            JobEvent::Warning(text) | JobEvent::RunFolderUnseen(text) => self.warn(text),
            JobEvent::Frame { .. } | JobEvent::Notice(_) | JobEvent::Finished => {}
        }
    }

    fn append_log(&mut self, rank: u32, stderr: bool, bytes: &[u8]) {
        if !bytes.is_empty() {
            let warning = self.folder.append_log(self.attempt.number, rank, stderr, bytes);
            warning.into_iter().for_each(|warning| self.warn(warning));
        }
    }

    fn on_signal(&mut self, signal: i32, source: SignalSource) {
        if self.signals.is_new(signal, source, self.host.now()) {
            self.record(None, RunEvent::SignalReceived { signal });
            self.unobserved.push(signal);
            self.supervise(match source {
                SignalSource::Launcher => SupervisorInput::Signal(signal),
                SignalSource::Agent => SupervisorInput::NodeSignal(signal),
            });
        }
    }

    /// Stores the cause of the first failure.
    fn set_cause(&mut self, why: String) {
        if self.supervisor.first_failure().is_none() {
            self.cause = Some(why);
        }
    }

    /// Keeps a warning for the report, once: all nodes may send the same.
    fn warn(&mut self, text: String) {
        if self.warnings.contains(&text) {
            return;
        }
        self.record(None, RunEvent::Warning { text: text.clone() });
        self.warnings.push(text);
    }

    fn supervise(&mut self, input: SupervisorInput) {
        for control in self.supervisor.handle(input, self.host.running_time()) {
            match control {
                RankControl::Signal(signal) | RankControl::Terminate(signal) => {
                    self.record(None, RunEvent::SignalSent { signal });
                }
                RankControl::Kill if !std::mem::replace(&mut self.killing, true) => {
                    self.record(None, RunEvent::Killed);
                }
                RankControl::Kill | RankControl::QueryState => {}
            }
            self.workers.control(control);
        }
    }

    fn since(&self, at: Instant) -> Duration {
        self.host.now().saturating_duration_since(at)
    }

    fn record(&mut self, rank: Option<u32>, event: RunEvent) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = now.ok().map(|now| now.as_secs_f64());
        let seconds = Some(self.since(self.start).as_secs_f64());
        let record = Record { time, seconds, rank, event };
        self.folder.append_event(&record);
        self.recorded.push(record);
    }

    fn outcome(self) -> AttemptOutcome {
        let host = |rank: u32| {
            self.attempt.ranks.get(rank as usize).map(|rank| rank.host.clone()).unwrap_or_default()
        };
        let first_failure = self.supervisor.first_failure();
        let failure = first_failure.map(|(rank, exit)| RankFailure {
            rank,
            host: host(rank),
            exit,
            last_lines: self.tails.get(&rank).cloned().unwrap_or_default(),
            other_ranks: self.rank_states.clone(),
        });
        let seconds = self.since(self.start).as_secs_f64();
        let result = RunResult {
            command: self.config.workload.user_command(),
            ranks: self.attempt.ranks.len() as u32,
            exit_code: self.supervisor.code(),
            restarts: self.attempt.number,
            reason: self.reason(failure.as_ref()),
            failure,
            hang: self.supervisor.hang.as_ref().map(|_| self.rank_states.clone()),
            collectives: Vec::new(),
            notes: self.warnings,
            rank_exits: self.supervisor.rank_exits,
            seconds,
        };
        let terminated = self.supervisor.signal.is_some();
        let Self { lost_nodes, node_lost_at, .. } = self;
        AttemptOutcome { result, lost_nodes, node_lost_at, terminated }
    }

    fn reason(&self, failure: Option<&RankFailure>) -> String {
        if let Some(why) = &self.supervisor.hang {
            return format!("hang detected: {why}");
        }
        match (failure, self.supervisor.signal, &self.cause) {
            (_, _, Some(cause)) if self.supervisor.check_failed => cause.clone(),
            (Some(_), _, Some(cause)) => cause.clone(),
            (Some(RankFailure { rank, host, exit, .. }), ..) => {
                let failed = if self.attempt.ranks.len() == 1 { "failed" } else { "failed first" };
                format!("rank {rank} on {host} {failed}: {exit}")
            }
            (None, ..) if self.supervisor.code() == STOPPED_EARLY => {
                let signal = self.supervisor.forwarded.map(RankExit::Signal);
                let by = signal.map_or("a signal to a rank".to_owned(), |s| s.to_string());
                format!("stopped early by {by}; can be resumed")
            }
            (None, Some(signal), _) => format!("terminated by {}", RankExit::Signal(signal)),
            (None, None, _) => "all ranks exited successfully".to_owned(),
        }
    }
}
