//! The thread that runs the launcher processes, reads their output and reaps them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read, Seek};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regatta_wire::clock;
use rustix::fs::{OFlags, fcntl_setfl};

use super::command::LaunchCommand;
use super::state::{SharedState, Shutdown, StartLauncherError, StartResult, lock, spawn_error};
use crate::lines::LineSplitter;
use crate::process::{signal_group, start_session, wait_unreaped};
use crate::subprocess::memory_file;

/// Maximum number of concurrent logins: an sshd refuses more from one host, and each uses a CPU for
/// encryption.
const MAX_LOGINS: usize = 64;
/// After this time a login no longer counts towards `MAX_LOGINS`.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Poll interval while launchers are waiting or shutting down, and otherwise.
const BUSY_POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_secs(1);
/// Wait status of a command that cannot be executed: exit code 127, as of a shell.
const CANNOT_EXECUTE: i32 = 127 << 8;

/// Runs all launchers until none is left.
pub(crate) struct LauncherDriver {
    pub(crate) commands: Vec<LaunchCommand>,
    pub(crate) bootstrap: String,
    pub(crate) hosts: Vec<String>,
    pub(crate) login_timeout: Duration,
    pub(crate) state: Arc<Mutex<SharedState>>,
    /// Closed by the owner to wake this thread.
    pub(crate) wake: Option<PipeReader>,
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) running: Vec<LauncherProcess>,
}

/// A running launcher.
pub(crate) struct LauncherProcess {
    index: usize,
    child: Child,
    since: Instant,
    /// Its standard input, until it has read it.
    bootstrap: Option<File>,
    /// Its output, until end of file.
    output: Option<PipeReader>,
    lines: LineSplitter,
}

impl LauncherDriver {
    /// Starts the first launchers, reports the result, and continues until none is left.
    pub(crate) fn run(mut self, started: StartResult) {
        let error = self.start_waiting(true).err();
        if error.is_some() {
            lock(&self.state).shutdown = Some(Shutdown::immediate(self.commands.len()));
        }
        // Fails if the owner is gone, which has requested a shutdown then.
        let _ = started.send(error);
        loop {
            let shutting_down = self.escalate();
            self.reap();
            if self.waiting.is_empty() && self.running.is_empty() {
                return;
            }
            // Later failures are reported as exits.
            let _ = self.start_waiting(false);
            let busy = shutting_down || !self.waiting.is_empty();
            self.poll(if busy { BUSY_POLL } else { IDLE_POLL });
        }
    }

    /// Starts waiting launchers up to the login limit. On the `first` call a failure is returned;
    /// later it is recorded as an exit.
    fn start_waiting(&mut self, first: bool) -> Result<(), StartLauncherError> {
        let now = Instant::now();
        let timeout = self.login_timeout;
        let logging_in = |process: &mut LauncherProcess| process.is_logging_in(now, timeout);
        let mut logins = self.running.iter_mut().map(logging_in).filter(|&login| login).count();
        while logins < MAX_LOGINS {
            let Some(index) = self.waiting.pop_front() else { break };
            match self.start(index, now) {
                Ok(process) => self.running.extend(process),
                Err(source) => {
                    let command = &self.commands[index];
                    let error = spawn_error(command, &self.hosts, source);
                    if first {
                        return Err(error);
                    }
                    let mut state = lock(&self.state);
                    state.push_line(index, error.to_string());
                    let status = ExitStatus::from_raw(CANNOT_EXECUTE);
                    state.exited.push((command.hosts.clone(), status));
                }
            }
            logins += 1;
        }
        Ok(())
    }

    /// Starts one launcher; `None` during a shutdown.
    fn start(&self, index: usize, now: Instant) -> io::Result<Option<LauncherProcess>> {
        let launch = &self.commands[index];
        let bootstrap = launch.bootstrap_on_stdin.then(|| memory_file(&self.bootstrap));
        let bootstrap = bootstrap.transpose()?;
        let (output, writer) = io::pipe()?;
        fcntl_setfl(&output, OFlags::NONBLOCK)?;
        let mut command = Command::new(&launch.program);
        command.args(&launch.args);
        for name in &launch.env_remove {
            command.env_remove(name);
        }
        command.envs(launch.env.iter().map(|(name, value)| (name, value)));
        command.stdin(match &bootstrap {
            Some(file) => Stdio::from(file.try_clone()?),
            None => Stdio::null(),
        });
        command.stdout(writer.try_clone()?).stderr(writer);
        let parent = std::process::id();
        // SAFETY: only system calls are made between fork and exec.
        unsafe { command.pre_exec(move || start_session(parent)) };
        // Under the lock: a shutdown either signals it or prevents its start.
        let mut state = lock(&self.state);
        if state.shutdown.is_some() {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.running[index] = Some(child.id());
        let (output, lines) = (Some(output), LineSplitter::default());
        Ok(Some(LauncherProcess { index, child, since: now, bootstrap, output, lines }))
    }

    /// Advances a shutdown; returns whether one is in progress.
    fn escalate(&mut self) -> bool {
        let mut state = lock(&self.state);
        state.escalate(clock::now());
        if state.shutdown.is_some() {
            self.waiting.clear();
        }
        state.shutdown.is_some()
    }

    /// Waits for output, an exit or the owner.
    fn poll(&mut self, timeout: Duration) {
        let pollfd = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // poll ignores negative descriptors.
        let fd = |pipe: &Option<PipeReader>| pollfd(pipe.as_ref().map_or(-1, |p| p.as_raw_fd()));
        let mut fds = vec![fd(&self.wake)];
        fds.extend(self.running.iter().map(|process| fd(&process.output)));
        // SAFETY: `fds` is an array of that many entries.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout.as_millis() as _) };
        if fds[0].revents != 0 {
            self.wake = None;
        }
        for (process, _) in self.running.iter_mut().zip(&fds[1..]).filter(|(_, f)| f.revents != 0) {
            process.read(&self.state);
        }
    }

    /// Reaps exited launchers.
    fn reap(&mut self) {
        let (state, commands) = (&self.state, &self.commands);
        self.running.retain_mut(|process| {
            if !has_exited(process.child.id()) {
                return true;
            }
            // Its last output is still in the pipe.
            process.read(state);
            let mut state = lock(state);
            if let Some(rest) = process.lines.finish() {
                state.push_line(process.index, rest);
            }
            // Kill its process group before the ID can be reused.
            signal_group(process.child.id(), libc::SIGKILL);
            let status = process.child.wait().unwrap_or(ExitStatus::from_raw(CANNOT_EXECUTE));
            state.running[process.index] = None;
            state.exited.push((commands[process.index].hosts.clone(), status));
            false
        });
    }
}

impl LauncherProcess {
    /// Whether it is probably still logging in: it reads its input after the login.
    fn is_logging_in(&mut self, now: Instant, timeout: Duration) -> bool {
        let Some(file) = &mut self.bootstrap else { return false };
        let length = file.metadata().map_or(0, |m| m.len());
        let read = file.stream_position().map_or(true, |position| position >= length);
        if read || now.duration_since(self.since) >= timeout {
            self.bootstrap = None;
        }
        self.bootstrap.is_some()
    }

    /// Reads available output, a limited amount at a time.
    fn read(&mut self, state: &Mutex<SharedState>) {
        let mut buffer = [0; 16 * 1024];
        for _ in 0..64 {
            let Some(output) = &mut self.output else { return };
            match output.read(&mut buffer) {
                Ok(0) => self.output = None,
                Ok(count) => {
                    let lines = self.lines.push(&buffer[..count], Instant::now());
                    let mut state = lock(state);
                    lines.into_iter().for_each(|line| state.push_line(self.index, line));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.output = None,
            }
        }
    }
}

/// Whether a child has exited; does not reap it.
fn has_exited(pid: u32) -> bool {
    match wait_unreaped(libc::P_PID, pid, libc::WNOHANG) {
        Ok(pid) => pid != 0,
        // Reaped elsewhere.
        Err(error) => error.raw_os_error() == Some(libc::ECHILD),
    }
}
