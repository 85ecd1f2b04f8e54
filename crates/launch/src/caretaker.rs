//! The thread that starts starters, reads what they say and takes note of their ends.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read, Seek};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};

use crate::bind::lead_session;
use crate::lines::Splitter;
use crate::process::signal_group;
use crate::started::{Ending, StartedError, State, Tell, lock, memory_file, spawn_error};
use crate::starter::Invocation;

/// How many may log in at once: a server refuses more from one machine, and a machine has only so
/// many processors to encrypt on.
const LOGINS: usize = 64;
/// After this long a login no longer holds others up.
pub(crate) const LOGIN: Duration = Duration::from_secs(3);
/// How often to look while something is expected, and otherwise.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_secs(1);
/// The status of what cannot be run, as shells have it.
const CANNOT_RUN: i32 = 127 << 8;

/// Looks after all starters until none is left.
pub(crate) struct Caretaker {
    invocations: Vec<Invocation>,
    boot: String,
    hosts: Vec<String>,
    /// After this long a login no longer holds others up.
    login: Duration,
    state: Arc<Mutex<State>>,
    /// Ends when the owner wants something.
    sleeper: Option<PipeReader>,
    waiting: VecDeque<usize>,
    running: Vec<Running>,
}

/// One starter that runs.
struct Running {
    starter: usize,
    child: Child,
    since: Instant,
    /// Its standard input, while it has not read it.
    boot: Option<File>,
    /// What it says; none when it will say no more.
    output: Option<PipeReader>,
    lines: Splitter,
}

impl Caretaker {
    pub(crate) fn new(
        invocations: Vec<Invocation>,
        boot: String,
        hosts: Vec<String>,
        login: Duration,
        state: Arc<Mutex<State>>,
        sleeper: PipeReader,
    ) -> Self {
        let waiting = (0..invocations.len()).collect();
        let sleeper = Some(sleeper);
        Self { invocations, boot, hosts, login, state, sleeper, waiting, running: Vec::new() }
    }

    /// Starts the first, says whether that went well, and goes on until none is left.
    pub(crate) fn run(mut self, tell: Tell) {
        let first = self.start_some(true).err();
        if first.is_some() {
            lock(&self.state).ending = Some(Ending::now(self.invocations.len()));
        }
        // Nobody listens if the owner is gone, who then has said what to do.
        let _ = tell.send(first);
        loop {
            let ending = self.urge();
            self.reap();
            if self.waiting.is_empty() && self.running.is_empty() {
                return;
            }
            // Failures of later ones are told as ends.
            let _ = self.start_some(false);
            let soon = ending || !self.waiting.is_empty();
            self.listen(if soon { SOON } else { LATER });
        }
    }

    /// Starts those whose turn it is. Of the `first` ones an error is returned; the others go on.
    fn start_some(&mut self, first: bool) -> Result<(), StartedError> {
        let now = Instant::now();
        let mut logging_in = 0;
        for running in &mut self.running {
            logging_in += usize::from(running.logs_in(now, self.login));
        }
        while logging_in < LOGINS {
            let Some(starter) = self.waiting.pop_front() else { break };
            match self.start(starter, now) {
                Ok(running) => self.running.extend(running),
                Err(source) => {
                    let invocation = &self.invocations[starter];
                    let error = spawn_error(invocation, &self.hosts, source);
                    if first {
                        return Err(error);
                    }
                    let mut state = lock(&self.state);
                    state.say(starter, error.to_string());
                    let status = ExitStatus::from_raw(CANNOT_RUN);
                    state.ended.push((invocation.hosts.clone(), status));
                }
            }
            logging_in += 1;
        }
        Ok(())
    }

    /// Starts one; none if all is to end.
    fn start(&self, starter: usize, now: Instant) -> io::Result<Option<Running>> {
        let invocation = &self.invocations[starter];
        let boot = invocation.takes_boot.then(|| memory_file(&self.boot)).transpose()?;
        let (output, writer) = io::pipe()?;
        fcntl_setfl(&output, OFlags::NONBLOCK)?;
        let mut command = Command::new(&invocation.program);
        command.args(&invocation.args);
        for name in &invocation.unset {
            command.env_remove(name);
        }
        command.envs(invocation.set.iter().map(|(name, value)| (name, value)));
        command.stdin(match &boot {
            Some(file) => Stdio::from(file.try_clone()?),
            None => Stdio::null(),
        });
        command.stdout(writer.try_clone()?).stderr(writer);
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(move || lead_session(parent)) };
        // Under the lock, so that it is either signalled or not yet begun.
        let mut state = lock(&self.state);
        if state.ending.is_some() {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.running[starter] = Some(child.id());
        let (output, lines) = (Some(output), Splitter::default());
        Ok(Some(Running { starter, child, since: now, boot, output, lines }))
    }

    /// Has those ended whose time is up; whether there is such a time at all.
    fn urge(&mut self) -> bool {
        let mut state = lock(&self.state);
        state.urge(Instant::now());
        if state.ending.is_some() {
            self.waiting.clear();
        }
        state.ending.is_some()
    }

    /// Waits until a starter says something or ends, or the owner wants something.
    fn listen(&mut self, limit: Duration) {
        let poll = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative number is passed over.
        let fd = |pipe: &Option<PipeReader>| poll(pipe.as_ref().map_or(-1, |p| p.as_raw_fd()));
        let mut fds = vec![fd(&self.sleeper)];
        fds.extend(self.running.iter().map(|r| fd(&r.output)));
        // SAFETY: `fds` is an array of that many entries.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, limit.as_millis() as _) };
        if fds[0].revents != 0 {
            self.sleeper = None;
        }
        for (running, _) in self.running.iter_mut().zip(&fds[1..]).filter(|(_, f)| f.revents != 0) {
            running.read(&self.state);
        }
    }

    /// Takes note of those that ended.
    fn reap(&mut self) {
        let (state, invocations) = (&self.state, &self.invocations);
        self.running.retain_mut(|running| {
            if !is_over(running.child.id()) {
                return true;
            }
            // What it wrote last is in the pipe.
            running.read(state);
            let mut state = lock(state);
            if let Some(rest) = running.lines.finish() {
                state.say(running.starter, rest);
            }
            // What it leaves goes with it, while its number is still its own.
            signal_group(running.child.id(), libc::SIGKILL);
            let status = running.child.wait().unwrap_or(ExitStatus::from_raw(CANNOT_RUN));
            state.running[running.starter] = None;
            state.ended.push((invocations[running.starter].hosts.clone(), status));
            false
        });
    }
}

impl Running {
    /// Whether it still logs in, for all one can see: it reads its input when it is through.
    fn logs_in(&mut self, now: Instant, limit: Duration) -> bool {
        let Some(file) = &mut self.boot else { return false };
        let length = file.metadata().map_or(0, |m| m.len());
        let read = file.stream_position().map_or(true, |position| position >= length);
        if read || now.duration_since(self.since) >= limit {
            self.boot = None;
        }
        self.boot.is_some()
    }

    /// Reads what is there, but not for ever.
    fn read(&mut self, state: &Mutex<State>) {
        let mut buffer = [0; 16 * 1024];
        for _ in 0..64 {
            let Some(output) = &mut self.output else { return };
            match output.read(&mut buffer) {
                Ok(0) => self.output = None,
                Ok(count) => {
                    let lines = self.lines.push(&buffer[..count], Instant::now());
                    let mut state = lock(state);
                    lines.into_iter().for_each(|line| state.say(self.starter, line));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.output = None,
            }
        }
    }
}

/// Whether a child is over; its status stays to be asked for.
fn is_over(pid: u32) -> bool {
    // SAFETY: an all-zero siginfo_t is a valid value, and waitid writes to no other place.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        match libc::waitid(libc::P_PID, pid, &mut info, options) {
            0 => info.si_pid() != 0,
            // Somebody else has asked for it.
            _ => io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
        }
    }
}
