//! What befalls clusters, done to this one; and what a job left in it.

use crate::cluster::{Cluster, NETWORK};
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

    /// Lets nothing through between two nodes, and no connection is told; to all others both have
    /// their ways.
    pub fn cut_between(&self, one: &str, other: &str) -> Result<(), TestbedError> {
        for (here, there) in [(one, other), (other, one)] {
            let (address, nobody) = (self.address(there)?, "02:00:00:00:00:01");
            let words = ["neighbour", "replace", &address, "lladdr", nobody, "dev", "eth0"];
            self.find(here)?.on_network(&[&words[..], &["nud", "permanent"]].concat())?;
        }
        Ok(())
    }

    /// Has a host's cable carry so much, as `tc` says it, in either direction.
    pub fn slow(&self, host: &str, rate: &str) -> Result<(), TestbedError> {
        let host = self.find(host)?;
        host.limit("eth0", rate)?;
        self.switch().limit(&host.port(), rate)
    }

    /// Has the way between two nodes carry so much, in either direction; what else they send is not
    /// held up. It takes the place of what [`Cluster::slow`] did to what they send.
    pub fn slow_between(&self, one: &str, other: &str, rate: &str) -> Result<(), TestbedError> {
        for (here, there) in [(one, other), (other, one)] {
            self.find(here)?.limit_to("eth0", &self.address(there)?, rate)?;
        }
        Ok(())
    }

    /// Puts the cable back, and all is as it was.
    pub fn mend(&self, host: &str) -> Result<(), TestbedError> {
        self.link(host, "up")?;
        let host = self.find(host)?;
        // What there is none of cannot be taken away.
        let _ = host.on_network(&["neighbour", "flush", "dev", "eth0", "nud", "permanent"]);
        let _ = host.unlimit("eth0");
        let _ = self.switch().unlimit(&host.port());
        Ok(())
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

    /// The address of a node.
    fn address(&self, node: &str) -> Result<String, TestbedError> {
        let number = self.nodes().iter().position(|name| name == node);
        let number = number.ok_or_else(|| TestbedError::NoHost {
            name: node.to_owned(),
            known: self.nodes().join(", "),
        })?;
        Ok(format!("{NETWORK}.{}", number + 1))
    }

    fn link(&self, host: &str, state: &str) -> Result<(), TestbedError> {
        let port = self.find(host)?.port();
        self.switch().on_network(&["link", "set", &port, state])
    }
}
