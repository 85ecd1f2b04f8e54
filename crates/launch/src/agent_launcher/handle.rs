//! Handle to the running launchers and the last lines of their output.
//!
//! One thread runs all launchers. The kernel kills a launcher when the thread that started it exits
//! (`PR_SET_PDEATHSIG`), so the thread lives as long as any of them.

use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::ops::Range;
use std::process::ExitStatus;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use regatta_wire::clock;

use super::command::LaunchCommand;
pub use super::driver::LOGIN_TIMEOUT;
use super::driver::LauncherDriver;
use super::state::{SharedState, Shutdown, StartLauncherError, add_saturating, lock};
use crate::killed_agent::KilledAgent;

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

impl LauncherHandle {
    /// Runs the commands and passes the bootstrap document to those that read it from standard
    /// input. Logins are limited, so some launchers start later. Fails if one of the first cannot be
    /// executed; later failures are reported by [`take_exited`](Self::take_exited). After `login_timeout` a
    /// login no longer counts towards the limit.
    pub fn spawn(
        commands: Vec<LaunchCommand>,
        bootstrap: &str,
        hosts: &[String],
        login_timeout: Duration,
    ) -> Result<Self, StartLauncherError> {
        for (path, text) in commands.iter().filter_map(|c| c.hostfile.as_ref()) {
            std::fs::write(path, text)
                .map_err(|source| StartLauncherError::Hostfile { path: path.clone(), source })?;
        }
        let ranges: Vec<_> = commands.iter().map(|c| c.hosts.clone()).collect();
        let state = Arc::new(Mutex::new(SharedState {
            tails: vec![VecDeque::new(); ranges.len()],
            running: vec![None; ranges.len()],
            ..SharedState::default()
        }));
        let (reader, wake) = io::pipe().map_err(StartLauncherError::Thread)?;
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
        let driver =
            thread.spawn(move || driver.run(sender)).map_err(StartLauncherError::Thread)?;
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

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
