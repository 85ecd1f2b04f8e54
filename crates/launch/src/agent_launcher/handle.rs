//! Handle to the running launchers and the last lines of their output.
//!
//! One thread runs all launchers. The kernel kills a launcher when the thread that started it exits
//! (`PR_SET_PDEATHSIG`), so the thread lives as long as any of them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Seek, Write};
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regatta_model::hostlist;
use regatta_wire::clock;
use rustix::fs::{MemfdFlags, memfd_create};

use super::command::LaunchCommand;
use super::driver::{LOGIN_TIMEOUT, LauncherDriver};
use crate::agents::killed_agent::KilledAgent;
use crate::process::signal_group;

/// Number of last lines kept per launcher.
const TAIL_LINES: usize = 20;
/// Maximum bytes kept per line.
const MAX_LINE: usize = 1000;
/// Longer than any job.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Why agents could not be launched.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LaunchError {
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

/// The running launchers. Dropping the handle kills them.
#[derive(Debug)]
pub struct LauncherHandle {
    state: Arc<Mutex<SharedState>>,
    /// Host indices of each launcher.
    ranges: Vec<Range<usize>>,
    /// Closing it wakes the driver thread.
    wake: Option<PipeWriter>,
    driver: Option<JoinHandle<()>>,
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
    terminate: Vec<(Instant, bool)>,
    /// Time between SIGTERM and SIGKILL.
    grace: Duration,
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

fn add_saturating(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + FOREVER)
}

/// Locks the state, ignoring poisoning: no code panics while it is inconsistent.
pub(crate) fn lock(state: &Mutex<SharedState>) -> MutexGuard<'_, SharedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LauncherHandle {
    /// Runs the commands and passes the bootstrap document to those that read it from standard
    /// input. Logins are limited, so some launchers start later. Fails if one of the first cannot be
    /// executed; later failures are reported by [`take_exited`](Self::take_exited).
    pub fn spawn(
        commands: Vec<LaunchCommand>,
        bootstrap: &str,
        hosts: &[String],
    ) -> Result<Self, LaunchError> {
        Self::spawn_with(commands, bootstrap, hosts, LOGIN_TIMEOUT)
    }

    fn spawn_with(
        commands: Vec<LaunchCommand>,
        bootstrap: &str,
        hosts: &[String],
        login_timeout: Duration,
    ) -> Result<Self, LaunchError> {
        for (path, text) in commands.iter().filter_map(|c| c.hostfile.as_ref()) {
            std::fs::write(path, text)
                .map_err(|source| LaunchError::Hostfile { path: path.clone(), source })?;
        }
        let ranges: Vec<_> = commands.iter().map(|c| c.hosts.clone()).collect();
        let state = Arc::new(Mutex::new(SharedState {
            tails: vec![VecDeque::new(); ranges.len()],
            running: vec![None; ranges.len()],
            ..SharedState::default()
        }));
        let (reader, wake) = io::pipe().map_err(LaunchError::Thread)?;
        let driver = LauncherDriver {
            waiting: (0..commands.len()).collect(),
            commands,
            bootstrap: bootstrap.to_owned(),
            hosts: hosts.to_vec(),
            login_timeout,
            state: state.clone(),
            wake: Some(reader),
            running: Vec::new(),
        };
        let (sender, started) = channel();
        let thread = std::thread::Builder::new().name("launchers".to_owned());
        let driver = thread.spawn(move || driver.run(sender)).map_err(LaunchError::Thread)?;
        let handle = Self { state, ranges, wake: Some(wake), driver: Some(driver) };
        match started.recv() {
            Ok(Some(error)) => Err(error),
            _ => Ok(handle),
        }
    }

    /// Last lines of the launcher of a host.
    pub fn output_tail(&self, host: usize) -> Vec<String> {
        let launcher = self.ranges.iter().position(|range| range.contains(&host));
        let tail = |launcher: usize| lock(&self.state).tails[launcher].iter().cloned().collect();
        launcher.map(tail).unwrap_or_default()
    }

    /// Launchers that exited since the last call: their hosts and exit status. Their output is
    /// complete in [`output_tail`](Self::output_tail).
    pub fn take_exited(&mut self) -> Vec<(Range<usize>, ExitStatus)> {
        std::mem::take(&mut lock(&self.state).exited)
    }

    /// Agents that were killed since the last call.
    pub fn take_killed(&mut self) -> Vec<KilledAgent> {
        std::mem::take(&mut lock(&self.state).killed)
    }

    /// Signals the process group of every running launcher.
    pub fn signal(&self, signal: i32) {
        lock(&self.state).signal(signal);
    }

    /// Waits until all launchers have exited. The agents have been sent a shutdown, and a launcher exits
    /// after its agents: an `ssh` killed earlier would leave its agent running. Launchers still
    /// running after `timeout` are sent SIGTERM, and SIGKILL after `grace`; those of `lost` hosts
    /// are not waited for. Returns the hosts whose launchers had to be terminated.
    pub fn shutdown(mut self, lost: &[u32], timeout: Duration, grace: Duration) -> Vec<usize> {
        let is_lost =
            |range: &Range<usize>| lost.iter().any(|&host| range.contains(&(host as usize)));
        let now = clock::now();
        let deadline = |range| if is_lost(range) { now } else { add_saturating(now, timeout) };
        let terminate = self.ranges.iter().map(|range| (deadline(range), false)).collect();
        self.join(Shutdown { terminate, grace });
        let state = lock(&self.state);
        let terminate = state.shutdown.iter().flat_map(|shutdown| &shutdown.terminate);
        let ranges = self.ranges.iter().zip(terminate);
        let late = ranges.filter(|(range, (_, terminated))| *terminated && !is_lost(range));
        late.flat_map(|(range, _)| range.clone()).collect()
    }

    /// Requests a shutdown and waits for the driver thread.
    fn join(&mut self, shutdown: Shutdown) {
        let Some(driver) = self.driver.take() else { return };
        lock(&self.state).shutdown = Some(shutdown);
        self.wake = None;
        let _ = driver.join();
    }
}

impl Drop for LauncherHandle {
    fn drop(&mut self) {
        self.join(Shutdown::immediate(self.ranges.len()));
    }
}

/// Reports whether the first launchers could be started.
pub(crate) type StartResult = Sender<Option<LaunchError>>;

/// The error of a command that cannot be executed.
pub(crate) fn spawn_error(
    command: &LaunchCommand,
    hosts: &[String],
    source: io::Error,
) -> LaunchError {
    let is_ssh = ["srun", "mpiexec", "flux"].iter().all(|name| command.program != *name);
    let hint = match source.kind() {
        io::ErrorKind::NotFound if is_ssh => "it is not in PATH: check --ssh",
        io::ErrorKind::NotFound => "it is not in PATH: load the module that provides it",
        io::ErrorKind::PermissionDenied => "it is not executable",
        _ => "check ulimit -u and ulimit -n",
    };
    LaunchError::Spawn {
        program: command.program.to_string_lossy().into_owned(),
        hosts: hostlist::compress(hosts.get(command.hosts.clone()).unwrap_or_default()),
        source,
        hint,
    }
}

/// An in-memory file with this text, positioned at its start. Unlike a pipe it takes any length at
/// once and shows how far it was read.
pub(crate) fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("regatta", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Output of a command on both streams if it succeeds within `timeout`, for queries such as
/// `mpiexec --version`.
pub fn output_of<A: AsRef<OsStr>>(program: &str, args: &[A], timeout: Duration) -> Option<String> {
    let captured = capture(program, args, timeout).ok()?;
    captured.status.success().then(|| captured.stdout + &captured.stderr)
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Captured {
    /// Its exit status; SIGKILL after the timeout.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs a command without input, and kills it after `timeout`.
pub fn capture<A: AsRef<OsStr>>(
    program: &str,
    args: &[A],
    timeout: Duration,
) -> io::Result<Captured> {
    let [mut stdout, mut stderr] = [memory_file("")?, memory_file("")?];
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(2)),
            Ok(Some(status)) => break status,
            _ => {
                signal_group(child.id(), libc::SIGKILL);
                break child.wait().unwrap_or(ExitStatus::from_raw(libc::SIGKILL));
            }
        }
    };
    let read = |file: &mut File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Captured { status, stdout: read(&mut stdout)?, stderr: read(&mut stderr)? })
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
