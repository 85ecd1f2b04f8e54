//! Fault injection, and inspection of what a job left behind.

use crate::cgroup;
use crate::cluster::{Cluster, NETWORK};
use crate::command::succeed;
use crate::error::TestbedError;
use crate::host_processes::{self, HostProcess};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for the processes of a crashed host to disappear.
const CRASH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum file system size; a size of zero would mean no limit.
const PAGE: u64 = 4096;

impl Cluster {
    /// Disconnects a host from the network: packets are dropped silently, and its processes keep
    /// running.
    pub fn disconnect(&self, host: &str) -> Result<(), TestbedError> {
        self.set_link(host, "down")
    }

    /// Drops all packets between two nodes silently; both still reach all others.
    pub fn disconnect_pair(&self, one: &str, other: &str) -> Result<(), TestbedError> {
        for (from, to) in [(one, other), (other, one)] {
            let (address, unused_mac) = (self.address(to)?, "02:00:00:00:00:01");
            let entry = format!("{address} lladdr {unused_mac} dev eth0 nud permanent");
            self.find(from)?.ip(&format!("neighbour replace {entry}"))?;
        }
        Ok(())
    }

    /// Limits a host's bandwidth in both directions, with a rate in `tc` syntax.
    pub fn throttle(&self, host: &str, rate: &str) -> Result<(), TestbedError> {
        let host = self.find(host)?;
        host.limit("eth0", rate)?;
        self.switch().limit(&host.port(), rate)
    }

    /// Limits the bandwidth between two nodes in both directions, and of nothing else. Replaces the
    /// limit of [`Cluster::throttle`] on what the nodes send.
    pub fn throttle_pair(&self, one: &str, other: &str, rate: &str) -> Result<(), TestbedError> {
        for (from, to) in [(one, other), (other, one)] {
            self.find(from)?.limit_to("eth0", &self.address(to)?, rate)?;
        }
        Ok(())
    }

    /// Reconnects a host and removes all its limits.
    pub fn heal(&self, host: &str) -> Result<(), TestbedError> {
        self.set_link(host, "up")?;
        let host = self.find(host)?;
        // These fail if there is nothing to remove.
        let _ = host.ip("neighbour flush dev eth0 nud permanent");
        let _ = host.unlimit("eth0");
        let _ = self.switch().unlimit(&host.port());
        Ok(())
    }

    /// Crashes a host permanently. Its processes are gone on return, and no peer is notified, because
    /// it is disconnected first.
    pub fn crash(&self, host: &str) -> Result<(), TestbedError> {
        self.disconnect(host)?;
        let host = self.find(host)?;
        // The holder is our child and not yet reaped, so its process ID is not reused.
        if let Some(pid) = Pid::from_raw(host.host_pid() as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let deadline = Instant::now() + CRASH_TIMEOUT;
        while !host_processes::is_dead(host)? {
            if Instant::now() >= deadline {
                let (name, seconds) = (host.name.clone(), CRASH_TIMEOUT.as_secs());
                return Err(TestbedError::StillAlive { name, seconds });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Processes of a host other than its own daemons and zombies: what a job left behind. Empty for
    /// a crashed host.
    pub fn processes(&self, host: &str) -> Result<Vec<HostProcess>, TestbedError> {
        host_processes::job_processes(self.find(host)?)
    }

    /// TCP ports in use on a host, without those of its own daemons.
    pub fn listening_ports(&self, host: &str) -> Result<Vec<u16>, TestbedError> {
        host_processes::listening_ports(self.find(host)?)
    }

    /// What jobs left behind on any host: processes and TCP ports, one line each, with the host's
    /// name. Empty if nothing.
    pub fn leftovers(&self) -> Result<Vec<String>, TestbedError> {
        host_processes::leftovers(&self.all_hosts().collect::<Vec<_>>())
    }

    /// Mounts an empty file system of this size over a directory, on this host only, to simulate a
    /// full disk.
    pub fn limit_disk(&self, host: &str, path: &Path, bytes: u64) -> Result<(), TestbedError> {
        let mut mount = self.find(host)?.enter();
        mount.args(["mount", "-t", "tmpfs", "-o", &format!("size={}", bytes.max(PAGE)), "tmpfs"]);
        succeed(mount.arg(path)).map(drop)
    }

    /// Limits the CPU time of a host's processes, and of those they start from now on, to this many
    /// CPUs. Requires the controller `cpu` of control groups version 1.
    pub fn limit_cpu(&self, host: &str, cpus: f64) -> Result<(), TestbedError> {
        let processes = host_processes::pids(self.find(host)?)?;
        cgroup::limit_cpu(self.name(), host, cpus, &processes)
    }

    fn address(&self, node: &str) -> Result<String, TestbedError> {
        let number = self.nodes().iter().position(|name| name == node);
        let number = number.ok_or_else(|| TestbedError::NoHost {
            name: node.to_owned(),
            known: self.nodes().join(", "),
        })?;
        Ok(format!("{NETWORK}.{}", number + 1))
    }

    fn set_link(&self, host: &str, state: &str) -> Result<(), TestbedError> {
        let port = self.find(host)?.port();
        self.switch().ip(&format!("link set {port} {state}"))
    }
}
