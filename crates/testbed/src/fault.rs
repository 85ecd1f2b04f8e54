//! What befalls clusters, done to this one; and what a job left in it.

use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::inside::{self, Process};
use crate::run::succeed;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time the processes of a crashed host have to be gone.
const DEATH: Duration = Duration::from_secs(10);
/// The least a file system can hold; a size of nothing would mean no limit.
const PAGE: u64 = 4096;

impl Cluster {
    /// Pulls a host's cable: nothing goes out or in, and no connection is told. The host's
    /// processes go on.
    pub fn cut(&self, host: &str) -> Result<(), TestbedError> {
        self.link(host, "down")
    }

    /// Puts the cable back.
    pub fn mend(&self, host: &str) -> Result<(), TestbedError> {
        self.link(host, "up")
    }

    /// Takes a host's power away, for good: its processes are gone when this returns, and no
    /// connection was told of it, for the cable was pulled first.
    pub fn crash(&self, host: &str) -> Result<(), TestbedError> {
        self.cut(host)?;
        let host = self.find(host)?;
        // The holder is our child and not reaped before the drop, so the number is still its own.
        if let Some(pid) = Pid::from_raw(host.holder() as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let deadline = Instant::now() + DEATH;
        while !inside::is_dead(host)? {
            if Instant::now() >= deadline {
                let (name, seconds) = (host.name.clone(), DEATH.as_secs());
                return Err(TestbedError::StillAlive { name, seconds });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What runs in a host beyond its own daemons: what a job left behind. A process that has
    /// ended and is not yet reaped does not count. Nothing runs in a host that crashed.
    pub fn processes(&self, host: &str) -> Result<Vec<Process>, TestbedError> {
        inside::jobs(self.find(host)?)
    }

    /// The TCP ports that are listened on in a host, without those of its own daemons.
    pub fn listening(&self, host: &str) -> Result<Vec<u16>, TestbedError> {
        inside::listening(self.find(host)?)
    }

    /// Covers a folder with an empty file system of that many bytes, for this host alone, so that
    /// its disk is soon full.
    pub fn small_disk(&self, host: &str, path: &Path, bytes: u64) -> Result<(), TestbedError> {
        let mut mount = self.find(host)?.enter();
        mount.args(["mount", "-t", "tmpfs", "-o", &format!("size={}", bytes.max(PAGE)), "tmpfs"]);
        succeed(mount.arg(path)).map(drop)
    }

    fn link(&self, host: &str, state: &str) -> Result<(), TestbedError> {
        let port = self.find(host)?.port();
        self.switch().on_network(&["link", "set", &port, state])
    }
}
