//! Runs what starts the agents, and keeps the last lines that it says.
//!
//! One thread looks after all starters. The kernel kills a starter when the thread that started it
//! dies, so the thread lives as long as any of them.

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
use rustix::fs::{MemfdFlags, memfd_create};

use crate::caretaker::{Caretaker, LOGIN};
use crate::process::signal_group;
use crate::starter::Invocation;

/// How many lines of each starter are kept.
const KEPT: usize = 20;
/// How much of a line is kept.
const LINE: usize = 1000;
/// Longer than any job.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Why agents could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartedError {
    /// The starter cannot be run.
    #[error("{program}, to start agents on {hosts}: {source}; {hint}")]
    Spawn {
        /// The program.
        program: String,
        /// The hosts it was for.
        hosts: String,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The host file cannot be written.
    #[error("host file {path}: {source}; choose another folder with --run-dir")]
    Hostfile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no thread left.
    #[error("no thread to look after agents' starters: {0}; see ulimit -u")]
    Thread(io::Error),
}

/// The running starters. Dropped, it kills them.
#[derive(Debug)]
pub struct Started {
    state: Arc<Mutex<State>>,
    ranges: Vec<Range<usize>>,
    /// Closing it wakes the thread.
    wake: Option<PipeWriter>,
    caretaker: Option<JoinHandle<()>>,
}

/// What the thread and its owner share.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The last lines of each starter.
    pub(crate) said: Vec<VecDeque<String>>,
    /// The process of each starter that runs.
    pub(crate) running: Vec<Option<u32>>,
    /// Those that ended and were not asked for yet.
    pub(crate) ended: Vec<(Range<usize>, ExitStatus)>,
    /// When and how all are to end; nothing more is started then.
    pub(crate) ending: Option<Ending>,
}

/// How the starters are to end.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Until then each has the time to end because its agents do.
    ask_at: Vec<Instant>,
    /// Whether it was asked since.
    asked: Vec<bool>,
    /// How long it has from then on until it is killed.
    grace: Duration,
}

impl Ending {
    /// All are killed at once.
    pub(crate) fn now(starters: usize) -> Self {
        let (ask_at, asked) = (vec![Instant::now(); starters], vec![false; starters]);
        Self { ask_at, asked, grace: Duration::ZERO }
    }
}

impl State {
    /// Keeps a line.
    pub(crate) fn say(&mut self, starter: usize, mut line: String) {
        line.truncate(line.floor_char_boundary(LINE));
        let said = &mut self.said[starter];
        if said.len() == KEPT {
            said.pop_front();
        }
        said.push_back(line);
    }

    /// Sends a signal to every starter that runs, with what it started. Under the lock, in which
    /// alone their numbers are given back, it cannot reach a stranger.
    pub(crate) fn signal(&self, signal: i32) {
        self.running.iter().flatten().for_each(|&pid| signal_group(pid, signal));
    }

    /// Asks or kills those whose time is up.
    pub(crate) fn urge(&mut self, now: Instant) {
        let Some(ending) = &mut self.ending else { return };
        for (starter, pid) in self.running.iter().enumerate() {
            let Some(pid) = *pid else { continue };
            let ask_at = ending.ask_at[starter];
            if now < ask_at {
                continue;
            }
            let was_asked = std::mem::replace(&mut ending.asked[starter], true);
            if now >= after(ask_at, ending.grace) {
                signal_group(pid, libc::SIGKILL);
            } else if !was_asked {
                signal_group(pid, libc::SIGTERM);
                // A stopped process hears of it only when it goes on.
                signal_group(pid, libc::SIGCONT);
            }
        }
    }
}

/// That much later.
fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + NEVER)
}

/// The shared state; a panic elsewhere does not make it unusable.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Started {
    /// Runs the commands and feeds those that want it the boot document. Of many, only some log in
    /// at a time; the others follow. An error if one of the first cannot be run; of the others,
    /// [`ended`](Self::ended) tells.
    pub fn spawn(
        invocations: Vec<Invocation>,
        boot: &str,
        hosts: &[String],
    ) -> Result<Self, StartedError> {
        Self::spawn_with(invocations, boot, hosts, LOGIN)
    }

    fn spawn_with(
        invocations: Vec<Invocation>,
        boot: &str,
        hosts: &[String],
        login: Duration,
    ) -> Result<Self, StartedError> {
        for (path, text) in invocations.iter().filter_map(|i| i.hostfile.as_ref()) {
            std::fs::write(path, text)
                .map_err(|source| StartedError::Hostfile { path: path.clone(), source })?;
        }
        let ranges: Vec<_> = invocations.iter().map(|i| i.hosts.clone()).collect();
        let state = Arc::new(Mutex::new(State {
            said: vec![VecDeque::new(); ranges.len()],
            running: vec![None; ranges.len()],
            ..State::default()
        }));
        let (sleeper, wake) = io::pipe().map_err(StartedError::Thread)?;
        let (boot, hosts) = (boot.to_owned(), hosts.to_vec());
        let caretaker = Caretaker::new(invocations, boot, hosts, login, state.clone(), sleeper);
        let (tell, told) = channel();
        let look_after = move || caretaker.run(tell);
        let thread = std::thread::Builder::new().name("starters".to_owned()).spawn(look_after);
        let caretaker = Some(thread.map_err(StartedError::Thread)?);
        let started = Self { state, ranges, wake: Some(wake), caretaker };
        match told.recv() {
            Ok(Some(error)) => Err(error),
            _ => Ok(started),
        }
    }

    /// The last lines that the starter of a host said.
    pub fn said(&self, host: usize) -> Vec<String> {
        let starter = self.ranges.iter().position(|range| range.contains(&host));
        let lines = |starter: usize| lock(&self.state).said[starter].iter().cloned().collect();
        starter.map(lines).unwrap_or_default()
    }

    /// The starters that ended since this was asked last: which hosts they were for, and how they
    /// ended. All they said is in [`said`](Self::said) by then.
    pub fn ended(&mut self) -> Vec<(Range<usize>, ExitStatus)> {
        std::mem::take(&mut lock(&self.state).ended)
    }

    /// Sends a signal to every starter that runs, with what it started.
    pub fn signal(&self, signal: i32) {
        lock(&self.state).signal(signal);
    }

    /// Waits until none is left. The agents were told to leave, and a starter ends when its agents
    /// have: killed before, `ssh` would end and leave its agent to end later. Those that have not
    /// ended after `patience` are asked to, and killed after `grace`. For hosts that are `gone`
    /// there is nothing to wait for. Returns the hosts that were waited for in vain.
    pub fn end(mut self, gone: &[u32], patience: Duration, grace: Duration) -> Vec<usize> {
        let starters = self.ranges.len();
        let is_gone =
            |range: &Range<usize>| gone.iter().any(|&host| range.contains(&(host as usize)));
        let now = Instant::now();
        let ask_at = |range| if is_gone(range) { now } else { after(now, patience) };
        let ask_at: Vec<Instant> = self.ranges.iter().map(ask_at).collect();
        self.finish(Ending { ask_at, asked: vec![false; starters], grace });
        let state = lock(&self.state);
        let asked = |starter: usize| state.ending.as_ref().is_some_and(|e| e.asked[starter]);
        let late = self.ranges.iter().enumerate().filter(|(s, range)| asked(*s) && !is_gone(range));
        late.flat_map(|(_, range)| range.clone()).collect()
    }

    fn finish(&mut self, ending: Ending) {
        let Some(caretaker) = self.caretaker.take() else { return };
        lock(&self.state).ending = Some(ending);
        self.wake = None;
        // It ends when the last starter has.
        let _ = caretaker.join();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.finish(Ending::now(self.ranges.len()));
    }
}

/// What the thread says of its first round of starts.
pub(crate) type Tell = Sender<Option<StartedError>>;

/// An error that names the hosts and what to do.
pub(crate) fn spawn_error(
    invocation: &Invocation,
    hosts: &[String],
    source: io::Error,
) -> StartedError {
    let hint = match source.kind() {
        io::ErrorKind::NotFound => "it is not in PATH here; load the module that has it",
        io::ErrorKind::PermissionDenied => "it may not be executed",
        _ => "see ulimit -u and ulimit -n",
    };
    StartedError::Spawn {
        program: invocation.program.to_string_lossy().into_owned(),
        hosts: hostlist::compress(hosts.get(invocation.hosts.clone()).unwrap_or_default()),
        source,
        hint,
    }
}

/// A file in memory with this text, to be read from its beginning. Unlike a pipe it takes any
/// length at once, and shows how far it was read.
pub(crate) fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("regatta", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// What a command prints on either stream, if it ends well within `limit`: for questions such as
/// `mpiexec --version`.
pub fn output_of<A: AsRef<OsStr>>(program: &str, args: &[A], limit: Duration) -> Option<String> {
    let mut output = memory_file("").ok()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    command.stdout(output.try_clone().ok()?).stderr(output.try_clone().ok()?);
    let mut child = command.spawn().ok()?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
            Ok(Some(status)) => break status,
            _ => {
                signal_group(child.id(), libc::SIGKILL);
                break child.wait().unwrap_or(ExitStatus::from_raw(libc::SIGKILL));
            }
        }
    };
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).ok()?;
    status.success().then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[path = "started_tests.rs"]
mod tests;
