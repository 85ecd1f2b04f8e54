//! The ranks of this node: launched, monitored and terminated with all their descendants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::Child;
use std::time::{Duration, Instant};

use regatta_model::result::RankExit;
use regatta_wire::clock;

use crate::event_queue::{EventQueue, Notify};
use crate::proc_stat::{OomCounter, cpu_ticks, describe_state};
use crate::process::{self, OpenFilesLimit, RankSpec, SpawnedRank, StartError};
use crate::run_folder::{LogFolder, RunFolderError};
use crate::signals::is_termination_signal;
use crate::stdio::{self, ControlEvent, Events, Log, StreamId};
use crate::worker_group::{JobEvent, RankControl, WorkerGroup};
use regatta_model::run_folder::log_name;

/// Why ranks could not be started on this node.
#[derive(Debug, thiserror::Error)]
pub enum LocalStartError {
    /// A rank could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A log file could not be created.
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    /// A thread for a rank's output could not be created.
    #[error(
        "cannot create a thread for a rank's output: {0}; raise the process limit (ulimit -u), or \
         start fewer ranks"
    )]
    Thread(std::io::Error),
}

type Result<T> = std::result::Result<T, LocalStartError>;

/// Number of last lines kept per rank, for the failure report.
const TAIL_LINES: usize = 10;
/// Interval between progress checks.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between reaps of orphaned processes.
const REAP_INTERVAL: Duration = Duration::from_millis(20);
/// Time for descendants to finish writing after the last rank exited: the `tee` of a shell's
/// `exec > >(tee log)` holds the last lines.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a killed rank to die.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for output to arrive and descendants to die after the last rank exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without output after which a stream that is still open is given up: after a pause, the queue
/// may be empty while its writers are only being woken.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// How ranks are launched and monitored.
pub struct LocalOptions {
    /// Log folder; `None` delivers raw output as events.
    pub logs: Option<LogFolder>,
    /// Number of restarts so far.
    pub attempt: u32,
    /// Whether to report progress, which scans /proc.
    pub report_progress: bool,
    /// Called by other threads when an event is available.
    pub notify: Option<Notify>,
}

/// The ranks of this node.
pub struct LocalWorkers {
    running: BTreeMap<u32, Child>,
    queue: Events,
    events: VecDeque<JobEvent>,
    tails: BTreeMap<u32, VecDeque<String>>,
    /// Failed ranks whose last lines are not yet reported.
    failed: BTreeSet<u32>,
    /// Number of open streams per rank.
    open_streams: BTreeMap<u32, u32>,
    oom: OomCounter,
    open_files: OpenFilesLimit,
    report_progress: bool,
    /// CPU time of all descendants at the last progress check, and the time of the check.
    last_cpu: (u64, Instant),
    /// When the ranks were first killed.
    killed_at: Option<Instant>,
    /// When the last rank exited. As for the next two, the time while output is paused is excluded.
    all_exited_at: Option<Instant>,
    /// When the last output was handled.
    last_output: Option<Instant>,
    /// When descendants were last killed after that.
    last_sweep: Option<Instant>,
    /// The last poll, if output was paused then.
    paused_at: Option<Instant>,
    last_reap: Instant,
    finished: bool,
}

impl LocalWorkers {
    /// Starts the ranks from this thread, whose death kills them (`PR_SET_PDEATHSIG`). If one
    /// cannot be started, none is left running.
    pub fn start(specs: &[RankSpec], options: &LocalOptions) -> Result<Self> {
        process::become_subreaper();
        let mut workers = Self {
            running: BTreeMap::new(),
            queue: EventQueue::new(options.notify.clone()),
            events: VecDeque::new(),
            tails: BTreeMap::new(),
            failed: BTreeSet::new(),
            open_streams: BTreeMap::new(),
            oom: OomCounter::start(),
            open_files: OpenFilesLimit::raise(),
            report_progress: options.report_progress,
            last_cpu: (0, Instant::now()),
            killed_at: None,
            all_exited_at: specs.is_empty().then(clock::now),
            last_output: None,
            last_sweep: None,
            paused_at: None,
            last_reap: Instant::now(),
            finished: false,
        };
        for spec in specs {
            if let Err(error) = workers.start_rank(spec, options) {
                process::kill_and_reap_descendants(OUTPUT_TIMEOUT);
                return Err(error);
            }
        }
        Ok(workers)
    }

    fn start_rank(&mut self, spec: &RankSpec, options: &LocalOptions) -> Result<()> {
        let rank = spec.rank;
        let log = |stderr| match &options.logs {
            Some(logs) => {
                let name = log_name(options.attempt, rank, stderr);
                logs.create(options.attempt, rank, stderr).map(|file| Log::File(file, name))
            }
            None => Ok(Log::Forward),
        };
        let (stdout_log, stderr_log) = (log(false)?, log(true)?);
        let SpawnedRank { mut child, channel } = spec.spawn(&self.open_files)?;
        let pid = child.id();
        let streams = (child.stdout.take(), child.stderr.take());
        self.running.insert(rank, child);
        if let (Some(out), Some(err)) = streams {
            self.open_streams.insert(rank, 2 + u32::from(channel.is_some()));
            let queue = || self.queue.clone();
            let id = |stderr| StreamId { rank, stderr };
            stdio::forward_stream(out, stdout_log, queue(), id(false))
                .and_then(|()| stdio::forward_stream(err, stderr_log, queue(), id(true)))
                .and_then(|()| match channel {
                    Some(channel) => stdio::forward_frames(channel, queue(), rank),
                    None => Ok(()),
                })
                .and_then(|()| stdio::watch_exit(pid, queue(), rank))
                .map_err(LocalStartError::Thread)?;
        }
        self.events.push_back(JobEvent::Started { rank, pid });
        Ok(())
    }

    /// The next event, without blocking. While `output_paused`, output stays queued.
    pub fn poll(&mut self, output_paused: bool) -> Option<JobEvent> {
        self.exclude_paused_time(output_paused);
        self.tick();
        while self.events.is_empty() {
            if let Some(event) = self.queue.pop_control() {
                self.handle_control(event);
            } else if let Some(output) = (!output_paused).then(|| self.queue.pop_output()).flatten()
            {
                self.handle_output(output);
            } else {
                self.check_finished(output_paused);
                break;
            }
        }
        self.events.pop_front()
    }

    fn handle_control(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::Exited(rank) => self.reap_rank(rank),
            ControlEvent::StreamClosed(rank) => {
                self.open_streams.entry(rank).and_modify(|n| *n = n.saturating_sub(1));
            }
            ControlEvent::Job(event) => self.events.push_back(event),
        }
    }

    fn handle_output(&mut self, output: JobEvent) {
        self.last_output = Some(clock::now());
        if let JobEvent::Line(line) = &output {
            for rank in &line.ranks {
                let tail = self.tails.entry(*rank).or_default();
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line.text.clone());
            }
        }
        self.events.push_back(output);
    }

    /// Reaps an exited rank. Its process ID stays reserved until then.
    fn reap_rank(&mut self, rank: u32) {
        let Some(mut child) = self.running.remove(&rank) else { return };
        let mut exit = child.wait().map_or(RankExit::Exit(1), process::rank_exit);
        if exit == RankExit::Signal(libc::SIGKILL) && self.oom.has_increased() {
            exit = RankExit::OutOfMemory;
        }
        if !exit.is_success() {
            self.failed.insert(rank);
        }
        if self.running.is_empty() {
            self.all_exited_at = Some(clock::now());
        }
        self.events.push_back(JobEvent::Exited(rank, exit));
    }

    /// With nothing queued, reports the tails of failed ranks and the end of the attempt.
    fn check_finished(&mut self, output_paused: bool) {
        let is_open = |rank: &u32| self.open_streams.get(rank).is_some_and(|&n| n > 0);
        // While output is paused, an empty queue does not mean that the streams are drained.
        let is_quiet = self.last_output.is_none_or(|at| clock::elapsed(at) > QUIET_TIME);
        let expired = !output_paused
            && is_quiet
            && self.all_exited_at.is_some_and(|at| clock::elapsed(at) > OUTPUT_TIMEOUT);
        let complete = |rank: &u32| expired || (!output_paused && !is_open(rank));
        let ranks: Vec<u32> = self.failed.iter().copied().filter(complete).collect();
        for rank in ranks {
            self.failed.remove(&rank);
            let lines = self.tails.remove(&rank).unwrap_or_default();
            self.events.push_back(JobEvent::OutputTail(rank, lines.into()));
        }
        let drained = !output_paused && self.open_streams.values().all(|&n| n == 0);
        if self.all_exited_at.is_some() && (drained || expired) && !self.finished {
            self.finished = true;
            process::kill_and_reap_descendants(OUTPUT_TIMEOUT);
            self.events.push_back(JobEvent::Finished);
        }
    }

    /// Stops the timers of draining while output is paused: what waits for a slow reader still has
    /// all its time.
    fn exclude_paused_time(&mut self, output_paused: bool) {
        let now = clock::now();
        let since = std::mem::replace(&mut self.paused_at, output_paused.then_some(now));
        let paused = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let timers = [&mut self.all_exited_at, &mut self.last_sweep, &mut self.last_output];
        timers.into_iter().flatten().for_each(|at| *at += paused);
    }

    fn tick(&mut self) {
        if self.finished {
            return;
        }
        if self.last_reap.elapsed() >= REAP_INTERVAL {
            process::reap_orphans(|pid| self.running.values().any(|c| c.id() == pid));
            self.last_reap = Instant::now();
        }
        self.check_progress();
        if self.killed_at.is_some_and(|at| clock::elapsed(at) >= KILL_TIMEOUT) {
            self.abandon_unkillable();
        }
        // Not on every tick: it scans /proc, and many lines may still be queued.
        let since = self.last_sweep.or(self.all_exited_at);
        if since.is_some_and(|since| clock::elapsed(since) >= DRAIN_TIMEOUT) {
            process::kill_descendants();
            self.last_sweep = Some(clock::now());
        }
    }

    /// Stops waiting for ranks that SIGKILL does not end: they are blocked in the kernel on a device
    /// or file system that does not respond.
    fn abandon_unkillable(&mut self) {
        for (rank, child) in std::mem::take(&mut self.running) {
            let (pid, state) = (child.id(), describe_state(child.id()));
            let after = format!("{} s after SIGKILL", KILL_TIMEOUT.as_secs());
            let warning = format!("rank {rank} (pid {pid}) is still alive {after}: it is {state}");
            self.events.push_back(JobEvent::Warning(warning));
            self.events.push_back(JobEvent::Exited(rank, RankExit::Signal(libc::SIGKILL)));
            self.all_exited_at = Some(clock::now());
        }
    }

    /// Reports progress if any descendant used CPU time since the last check.
    fn check_progress(&mut self) {
        let (before, checked_at) = self.last_cpu;
        if !self.report_progress || checked_at.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        let now = cpu_ticks(&process::descendants());
        self.last_cpu = (now, Instant::now());
        if now != before {
            self.events.push_back(JobEvent::Progress);
        }
    }
}

impl WorkerGroup for LocalWorkers {
    fn next(&mut self, timeout: Duration, output_paused: bool) -> Option<JobEvent> {
        self.poll(output_paused).or_else(|| {
            self.queue.wait(timeout, output_paused);
            self.poll(output_paused)
        })
    }

    fn control(&mut self, control: RankControl) {
        match control {
            RankControl::Signal(signal) | RankControl::Terminate(signal) => {
                let pids = self.running.values().map(Child::id);
                pids.clone().for_each(|pid| process::signal_group(pid, signal));
                // A stopped process handles the signal only once it is continued.
                if is_termination_signal(signal) {
                    pids.for_each(|pid| process::signal_group(pid, libc::SIGCONT));
                }
            }
            RankControl::Kill => {
                self.killed_at.get_or_insert_with(clock::now);
                process::kill_descendants();
            }
            RankControl::QueryState => {
                let states = self.running.iter().map(|(rank, c)| (*rank, describe_state(c.id())));
                self.events.push_back(JobEvent::RankStates(states.collect()));
            }
        }
    }
}

/// No rank outlives its `LocalWorkers`.
impl Drop for LocalWorkers {
    fn drop(&mut self) {
        if !self.finished {
            process::kill_and_reap_descendants(OUTPUT_TIMEOUT);
        }
    }
}
