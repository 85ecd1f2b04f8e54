//! Queries to this host and its scheduler.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use regatta_discover::Env;

use crate::subprocess::output_of;

/// Limit on queries to a scheduler that may not answer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of this host.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// User name, to make paths unique per user.
pub fn user(env: &Env) -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|v| env.get(v)).map(str::to_owned);
    named.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()))
}

/// Whether files in a directory, or in its closest existing parent, are in memory.
pub fn is_in_memory(dir: &Path) -> bool {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    let existing = dir.ancestors().find_map(|dir| rustix::fs::statfs(dir).ok());
    existing.is_some_and(|fs| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(fs.f_type as u32)))
}

/// Resolves a host name, IPv4 addresses first; empty if it cannot be resolved.
pub fn resolve(name: &str) -> Vec<IpAddr> {
    let found = (name, 0u16).to_socket_addrs().into_iter().flatten().map(|a| a.ip());
    let mut addresses: Vec<IpAddr> = found.filter(|a| !a.is_loopback()).collect();
    addresses.sort_by_key(|a| a.is_ipv6());
    addresses.dedup();
    addresses
}

/// Hosts of the enclosing Flux job.
pub fn flux_hosts() -> Option<String> {
    command_output("flux", &["hostlist", "local"])
}

/// Version text of the `mpiexec` in PATH.
pub fn mpiexec_version() -> Option<String> {
    command_output("mpiexec", &["--version"])
}

/// Slurm's description of a job.
pub fn slurm_job(id: &str) -> Option<String> {
    command_output("scontrol", &["show", "job", "-d", id])
}

fn command_output(program: &str, args: &[&str]) -> Option<String> {
    output_of(program, args, QUERY_TIMEOUT).map(|text| text.trim().to_owned())
}
