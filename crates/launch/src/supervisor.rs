//! Supervision of a job: determines the first failure, and when the other ranks are signalled and
//! killed. No I/O; the caller passes the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use regatta_events::hang::wording;
use regatta_model::result::{RankExit, STOPPED_EARLY};

use crate::failure_attribution::FailureAttribution;
use crate::signals::{is_job_control, is_termination_signal};
use crate::worker_group::RankControl;

/// An event for the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorInput {
    /// A rank exited.
    Exited(u32, RankExit),
    /// The first rank failed because it lost the second.
    LostPeer(u32, u32),
    /// The connection to a node failed. This is its first rank; the exits of its ranks are reported
    /// later.
    ConnectionLost(u32),
    /// A check of the running job failed.
    CheckFailed,
    /// An operation of a communicator has made no progress for the hang timeout.
    Stalled,
    /// A signal to the launcher, from the user or the scheduler.
    Signal(i32),
    /// A signal to a node, from the scheduler.
    NodeSignal(i32),
    /// A rank wrote output or used CPU time.
    Progress,
    /// Time passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobPhase {
    Running,
    /// Ranks were sent a termination signal at this time.
    Terminating(Instant),
    Killing,
    Finished,
}

/// Timeouts of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Time between SIGTERM and SIGKILL after a failure.
    pub grace: Duration,
    /// Time between a termination signal of the user or the scheduler and SIGKILL; `None`: the ranks
    /// may take any time to save.
    pub signal_grace: Option<Duration>,
    /// A job without progress for this long counts as hung; `None` disables the check.
    pub hang_after: Option<Duration>,
    /// Whether a rank that exits with [`STOPPED_EARLY`] has not failed, even if no signal was sent
    /// through the launcher.
    pub may_stop_early: bool,
}

impl JobLimits {
    /// Limits with the same grace period after a failure and a signal.
    pub fn new(grace: Duration) -> Self {
        Self { grace, signal_grace: Some(grace), hang_after: None, may_stop_early: false }
    }
}

/// Exit code of a hung job, as of `timeout`.
const HANG_CODE: u8 = 124;
/// Exit code of a job whose check failed.
const CHECK_FAILED_CODE: u8 = 1;

/// How late the exit of a rank may be reported compared to the exits it caused.
const LATE_REPORT_WINDOW: Duration = Duration::from_secs(1);

/// State of a job.
#[derive(Debug)]
pub struct Supervisor {
    limits: JobLimits,
    phase: JobPhase,
    /// When terminating ranks are killed; `None` while they may take any time.
    kill_at: Option<Instant>,
    last_progress: Instant,
    /// Whether the user stopped the ranks (SIGTSTP).
    stopped: bool,
    /// Why the job was terminated, if it hung.
    pub(crate) hang: Option<String>,
    /// Whether the job was terminated because a check failed.
    pub(crate) check_failed: bool,
    running: u32,
    /// The exit of each rank so far.
    pub(crate) rank_exits: BTreeMap<u32, RankExit>,
    /// The failures before any termination signal.
    failures: FailureAttribution,
    /// The signal that terminated the job.
    pub(crate) signal: Option<i32>,
    /// The last signal sent to the ranks on behalf of the user or the scheduler.
    pub(crate) forwarded: Option<i32>,
}

impl Supervisor {
    /// A job of `ranks` running ranks.
    pub fn new(ranks: u32, limits: JobLimits, now: Instant) -> Self {
        Self {
            limits,
            phase: JobPhase::Running,
            kill_at: None,
            last_progress: now,
            stopped: false,
            hang: None,
            check_failed: false,
            running: ranks,
            rank_exits: BTreeMap::new(),
            failures: FailureAttribution::default(),
            signal: None,
            forwarded: None,
        }
    }

    /// Handles an event and returns commands to the running ranks.
    pub fn handle(&mut self, input: SupervisorInput, now: Instant) -> Vec<RankControl> {
        match input {
            SupervisorInput::Exited(rank, exit) => self.on_exit(rank, exit, now),
            SupervisorInput::LostPeer(rank, peer) => {
                self.failures.add_lost_peer(rank, peer);
                Vec::new()
            }
            SupervisorInput::ConnectionLost(rank) => self.on_connection_lost(rank, now),
            SupervisorInput::CheckFailed => self.on_check_failed(now),
            SupervisorInput::Stalled => self.on_stalled(now),
            SupervisorInput::Signal(signal) => self.on_signal(signal, now),
            SupervisorInput::NodeSignal(signal) => self.on_node_signal(signal, now),
            SupervisorInput::Progress => {
                self.last_progress = now;
                Vec::new()
            }
            SupervisorInput::Tick => self.on_tick(now),
        }
    }

    fn on_exit(&mut self, rank: u32, exit: RankExit, now: Instant) -> Vec<RankControl> {
        if self.rank_exits.insert(rank, exit).is_some() || self.running == 0 {
            return Vec::new();
        }
        self.running -= 1;
        // A rank that exits after the termination signal is a consequence, not the cause.
        let bad = !exit.is_success() && !self.has_stopped_early(exit);
        let failed = self.phase == JobPhase::Running && bad;
        if failed || self.is_late_kill(exit, now) {
            self.failures.set_first(rank, exit);
        }
        if bad && !self.is_effect_of_termination(exit) {
            self.failures.add_failure(rank, exit);
        }
        if self.running == 0 {
            self.phase = JobPhase::Finished;
            return Vec::new();
        }
        match (self.phase, self.failures.reported_first()) {
            (JobPhase::Running, Some(_)) => self.terminate_others(now),
            // The others can no longer finish their step and save.
            (JobPhase::Terminating(_), _) if bad => {
                self.kill_at.get_or_insert(now + self.limits.grace);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Whether a rank was stopped by a signal, and can resume.
    fn has_stopped_early(&self, exit: RankExit) -> bool {
        exit.is_stopped_early() && (self.limits.may_stop_early || self.forwarded.is_some())
    }

    /// Whether this exit by SIGKILL, not sent by us, is the cause of an earlier reported failure: a
    /// peer may notice the death and exit before the death itself is reported.
    fn is_late_kill(&self, exit: RankExit, now: Instant) -> bool {
        let JobPhase::Terminating(since) = self.phase else { return false };
        let peer_exited = matches!(self.failures.reported_first(), Some((_, RankExit::Exit(_))));
        let killed = matches!(exit, RankExit::Signal(libc::SIGKILL) | RankExit::OutOfMemory);
        peer_exited && killed && now.saturating_duration_since(since) < LATE_REPORT_WINDOW
    }

    /// Whether a rank exited by a signal from the launcher.
    fn is_effect_of_termination(&self, exit: RankExit) -> bool {
        let signalled = matches!(exit, RankExit::Signal(signal) if is_termination_signal(signal));
        match self.phase {
            JobPhase::Running => false,
            JobPhase::Terminating(_) => signalled,
            JobPhase::Killing | JobPhase::Finished => true,
        }
    }

    /// The rank that failed first, before any termination signal. After a failed check, exits of ranks
    /// are its consequence.
    pub(crate) fn first_failure(&self) -> Option<(u32, RankExit)> {
        self.failures.first_failure().filter(|_| !self.check_failed)
    }

    fn on_connection_lost(&mut self, rank: u32, now: Instant) -> Vec<RankControl> {
        if self.phase != JobPhase::Running {
            return Vec::new();
        }
        self.failures.set_first(rank, RankExit::NodeLost);
        self.terminate_others(now)
    }

    fn on_check_failed(&mut self, now: Instant) -> Vec<RankControl> {
        if self.phase != JobPhase::Running {
            return Vec::new();
        }
        self.check_failed = true;
        self.terminate_others(now)
    }

    /// Queries the state of all ranks, then terminates them.
    fn terminate_others(&mut self, now: Instant) -> Vec<RankControl> {
        let mut actions = vec![RankControl::QueryState];
        self.phase = JobPhase::Terminating(now);
        self.kill_at = Some(now + self.limits.grace);
        actions.push(RankControl::Terminate(libc::SIGTERM));
        actions
    }

    /// Forwards the first termination signal, after which the ranks may exit by themselves; a second
    /// one kills. Other signals are only forwarded.
    fn on_signal(&mut self, signal: i32, now: Instant) -> Vec<RankControl> {
        if !is_job_control(signal) {
            self.forwarded = Some(signal);
        }
        match self.phase {
            JobPhase::Finished => Vec::new(),
            _ if !is_termination_signal(signal) => {
                match signal {
                    libc::SIGTSTP => self.stopped = true,
                    libc::SIGCONT => (self.stopped, self.last_progress) = (false, now),
                    _ => {}
                }
                vec![RankControl::Signal(signal)]
            }
            JobPhase::Running => {
                self.signal = Some(signal);
                self.phase = JobPhase::Terminating(now);
                self.kill_at = self.limits.signal_grace.map(|grace| now + grace);
                vec![match self.kill_at {
                    Some(_) => RankControl::Terminate(signal),
                    None => RankControl::Signal(signal),
                }]
            }
            JobPhase::Terminating(_) | JobPhase::Killing => {
                // Recorded also after a failure: a signalled job must not be restarted.
                self.signal.get_or_insert(signal);
                self.phase = JobPhase::Killing;
                vec![RankControl::Kill]
            }
        }
    }

    /// The scheduler signals many nodes, some of them late: this never counts as a second signal.
    fn on_node_signal(&mut self, signal: i32, now: Instant) -> Vec<RankControl> {
        let terminating = matches!(self.phase, JobPhase::Terminating(_) | JobPhase::Killing);
        if is_termination_signal(signal) && terminating {
            self.signal.get_or_insert(signal);
            return Vec::new();
        }
        self.on_signal(signal, now)
    }

    /// Unlike a job without output and CPU time, one that stalls may poll.
    fn on_stalled(&mut self, now: Instant) -> Vec<RankControl> {
        let is_running = matches!(self.phase, JobPhase::Running | JobPhase::Terminating(_));
        if !is_running || self.kill_at.is_some() || self.stopped {
            return Vec::new();
        }
        self.hang = Some(wording::no_progress(self.hang_limit()));
        self.terminate_others(now)
    }

    fn on_tick(&mut self, now: Instant) -> Vec<RankControl> {
        match self.phase {
            JobPhase::Running | JobPhase::Terminating(_)
                if self.kill_at.is_none() && self.is_hanging(now) =>
            {
                self.hang = Some(wording::no_activity(self.hang_limit()));
                self.terminate_others(now)
            }
            JobPhase::Terminating(_) if self.kill_at.is_some_and(|at| now >= at) => {
                self.phase = JobPhase::Killing;
                vec![RankControl::Kill]
            }
            // Repeated: a rank that was being started may have missed it.
            JobPhase::Killing => vec![RankControl::Kill],
            _ => Vec::new(),
        }
    }

    fn hang_limit(&self) -> Duration {
        self.limits.hang_after.unwrap_or_default()
    }

    fn is_hanging(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.last_progress);
        !self.stopped && self.limits.hang_after.is_some_and(|limit| idle >= limit)
    }

    /// The job's exit code: that of the first failed rank; 124 for a hang; 1 for a failed check; [`STOPPED_EARLY`] if ranks
    /// were stopped and can resume; that of the termination signal, unless all ranks succeeded.
    pub fn code(&self) -> u8 {
        let exits = || self.rank_exits.values();
        let is_clean = |exit: &RankExit| exit.is_success() || exit.is_stopped_early();
        let all_good = self.running == 0 && exits().all(is_clean);
        match (self.first_failure(), self.signal) {
            (Some((_, exit)), _) => exit.exit_code(),
            _ if self.hang.is_some() => HANG_CODE,
            _ if self.check_failed => CHECK_FAILED_CODE,
            (None, Some(signal)) if !all_good => RankExit::Signal(signal).exit_code(),
            _ if exits().any(|exit| exit.is_stopped_early()) => STOPPED_EARLY,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
