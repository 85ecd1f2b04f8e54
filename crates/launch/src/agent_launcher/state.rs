//! State shared by the thread that runs the launchers and its owner.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use regatta_model::hostlist;
use regatta_wire::clock;

use super::command::LaunchCommand;
use crate::killed_agent::KilledAgent;
use crate::process::signal_group;

/// Number of last lines kept per launcher.
pub(crate) const TAIL_LINES: usize = 20;
/// Maximum bytes kept per line.
pub(crate) const MAX_LINE: usize = 1000;
/// Longer than any job.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Why agents could not be launched.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum StartLauncherError {
    /// The launcher cannot be executed.
    #[error("cannot execute {program} to start agents on {hosts}: {source}; {hint}")]
    Spawn { program: String, hosts: String, source: io::Error, hint: &'static str },
    /// The host file cannot be written.
    #[error("cannot write host file {path}: {source}; choose another folder with --run-dir")]
    Hostfile { path: PathBuf, source: io::Error },
    /// The driver thread cannot be created.
    #[error(
        "cannot create a thread for the agent launchers: {0}; raise the process limit (ulimit -u)"
    )]
    Thread(io::Error),
}

/// State shared by the driver thread and its owner.
#[derive(Debug, Default)]
pub(crate) struct SharedState {
    /// Last lines of each launcher.
    pub(crate) tails: Vec<VecDeque<String>>,
    /// Process ID of each running launcher.
    pub(crate) running: Vec<Option<u32>>,
    /// Exits not yet taken by the owner.
    pub(crate) exited: Vec<(Range<usize>, ExitStatus)>,
    /// Agents that were killed, not yet taken by the owner.
    pub(crate) killed: Vec<KilledAgent>,
    /// Set once the launchers have to terminate; none is started after that.
    pub(crate) shutdown: Option<Shutdown>,
}

/// A shutdown of all launchers.
#[derive(Debug)]
pub(crate) struct Shutdown {
    /// When each launcher is sent SIGTERM, unless it exits before, and whether it was sent.
    pub(crate) terminate: Vec<(Instant, bool)>,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Shutdown {
    /// Kills all launchers at once.
    pub(crate) fn immediate(launchers: usize) -> Self {
        Self { terminate: vec![(clock::now(), false); launchers], grace: Duration::ZERO }
    }
}

impl SharedState {
    /// Appends a line of output.
    pub(crate) fn push_line(&mut self, launcher: usize, mut line: String) {
        if let Some(agent) = KilledAgent::parse(&line) {
            line = agent.to_string();
            self.killed.push(agent);
        }
        line.truncate(line.floor_char_boundary(MAX_LINE));
        let tail = &mut self.tails[launcher];
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }

    /// Signals the process group of every running launcher. Launchers are reaped only under the
    /// lock, so no process ID can have been reused.
    pub(crate) fn signal(&self, signal: i32) {
        self.running.iter().flatten().for_each(|&pid| signal_group(pid, signal));
    }

    /// Sends SIGTERM or SIGKILL to launchers whose deadline has passed.
    pub(crate) fn escalate(&mut self, now: Instant) {
        let Some(Shutdown { terminate, grace }) = &mut self.shutdown else { return };
        for (pid, (terminate_at, terminated)) in self.running.iter().zip(terminate) {
            let Some(pid) = pid.filter(|_| now >= *terminate_at) else { continue };
            let already = std::mem::replace(terminated, true);
            if now >= add_saturating(*terminate_at, *grace) {
                signal_group(pid, libc::SIGKILL);
            } else if !already {
                signal_group(pid, libc::SIGTERM);
                // A stopped process handles the signal only once it is continued.
                signal_group(pid, libc::SIGCONT);
            }
        }
    }
}

pub(crate) fn add_saturating(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + FOREVER)
}

/// Locks the state, ignoring poisoning: no code panics while it is inconsistent.
pub(crate) fn lock(state: &Mutex<SharedState>) -> MutexGuard<'_, SharedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports whether the first launchers could be started.
pub(crate) type StartResult = Sender<Option<StartLauncherError>>;

/// The error of a command that cannot be executed.
pub(crate) fn spawn_error(
    command: &LaunchCommand,
    hosts: &[String],
    source: io::Error,
) -> StartLauncherError {
    let is_ssh = ["srun", "mpiexec", "flux"].iter().all(|name| command.program != *name);
    let hint = match source.kind() {
        io::ErrorKind::NotFound if is_ssh => "it is not in PATH: check --ssh",
        io::ErrorKind::NotFound => "it is not in PATH: load the module that provides it",
        io::ErrorKind::PermissionDenied => "it is not executable",
        _ => "check ulimit -u and ulimit -n",
    };
    StartLauncherError::Spawn {
        program: command.program.to_string_lossy().into_owned(),
        hosts: hostlist::compress(hosts.get(command.hosts.clone()).unwrap_or_default()),
        source,
        hint,
    }
}
