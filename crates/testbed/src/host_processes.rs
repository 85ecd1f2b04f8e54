//! Processes and listening sockets of a host, from the machine's `/proc`.

use crate::error::{TestbedError, io};
use crate::host::Host;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs of the host itself. The last two belong to newer versions of sshd.
const DAEMONS: [&str; 7] =
    ["slurmctld", "slurmd", "slurmstepd", "munged", "sshd", "sshd-session", "sshd-auth"];
/// Debian's suffix of Slurm programs.
const SUFFIX: &str = "-wlm";
/// State of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostProcess {
    /// Process ID on this machine, not in the host's namespace.
    pub pid: u32,
    /// Parent's process ID on this machine.
    pub parent: u32,
    /// Command line.
    pub command: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListeningSocket {
    pub(crate) port: u16,
    inode: u64,
}

/// From `/proc/<pid>/status`.
#[derive(Debug, PartialEq, Eq)]
struct ProcStatus {
    parent: u32,
    zombie: bool,
    /// Whether it is the first process of its namespace.
    first: bool,
}

/// Processes of a host, without its first process, its daemons and zombies.
pub(crate) fn job_processes(host: &Host) -> Result<Vec<HostProcess>, TestbedError> {
    Ok(without_daemons(&live_processes(host)?))
}

fn without_daemons(live: &[(u32, ProcStatus)]) -> Vec<HostProcess> {
    let process = |(pid, status): &(u32, ProcStatus)| {
        let dir = proc_dir(*pid);
        // A process may exit at any time.
        let (program, words) =
            (fs::read_link(dir.join("exe")).ok()?, fs::read(dir.join("cmdline")));
        let command = String::from_utf8_lossy(&words.ok()?).replace('\0', " ");
        let (pid, parent, command) = (*pid, status.parent, command.trim_end().to_owned());
        (!status.first && !is_daemon(&program)).then_some(HostProcess { pid, parent, command })
    };
    live.iter().filter_map(process).collect()
}

/// Process IDs on this machine of all processes of a host.
pub(crate) fn pids(host: &Host) -> Result<Vec<u32>, TestbedError> {
    Ok(live_processes(host)?.into_iter().map(|(pid, _)| pid).collect())
}

/// Whether a host has no process left.
pub(crate) fn is_dead(host: &Host) -> Result<bool, TestbedError> {
    Ok(live_processes(host)?.is_empty())
}

/// TCP ports on which anything but the host's daemons listens.
pub(crate) fn listening_ports(host: &Host) -> Result<Vec<u16>, TestbedError> {
    ports_without_daemons(host, &live_processes(host)?)
}

fn ports_without_daemons(
    host: &Host,
    live: &[(u32, ProcStatus)],
) -> Result<Vec<u16>, TestbedError> {
    if live.is_empty() {
        return Ok(Vec::new());
    }
    let mut daemons = BTreeSet::new();
    for (pid, _) in live {
        if fs::read_link(proc_dir(*pid).join("exe")).is_ok_and(|p| is_daemon(&p)) {
            daemons.extend(socket_inodes(*pid));
        }
    }
    let others = sockets(host)?.into_iter().filter(|s| !daemons.contains(&s.inode));
    let ports: BTreeSet<u16> = others.map(|s| s.port).collect();
    Ok(ports.into_iter().collect())
}

/// The processes and ports of jobs on all hosts, one line each. Reads the machine's processes once.
pub(crate) fn leftovers(hosts: &[&Host]) -> Result<Vec<String>, TestbedError> {
    let mut left = Vec::new();
    for (host, live) in hosts.iter().zip(live_processes_of(hosts)?) {
        let processes = without_daemons(&live).into_iter().map(|p| p.command);
        let ports = ports_without_daemons(host, &live)?.into_iter().map(|p| format!("port {p}"));
        left.extend(processes.chain(ports).map(|what| format!("{}: {what}", host.name)));
    }
    Ok(left)
}

pub(crate) fn sockets(host: &Host) -> Result<Vec<ListeningSocket>, TestbedError> {
    let mut all = Vec::new();
    for name in ["tcp", "tcp6"] {
        let path = proc_dir(host.host_pid()).join("net").join(name);
        match fs::read_to_string(&path) {
            Ok(table) => all.extend(listeners(&table)),
            // The kernel has no IPv6.
            Err(e) if name == "tcp6" && e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io("read", path)(e)),
        }
    }
    Ok(all)
}

/// All processes of a host except zombies.
fn live_processes(host: &Host) -> Result<Vec<(u32, ProcStatus)>, TestbedError> {
    Ok(live_processes_of(&[host])?.remove(0))
}

/// All processes of each host except zombies.
fn live_processes_of(hosts: &[&Host]) -> Result<Vec<Vec<(u32, ProcStatus)>>, TestbedError> {
    let entries = fs::read_dir("/proc").map_err(io("read", "/proc"))?;
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Vec<(u32, ProcStatus)>> = hosts.iter().map(|_| Vec::new()).collect();
    for pid in pids {
        if let Ok(namespace) = fs::read_link(proc_dir(pid).join("ns/pid"))
            && let Some(index) = hosts.iter().position(|host| host.is_pid_namespace(&namespace))
            && let Ok(text) = fs::read_to_string(proc_dir(pid).join("status"))
            && let Some(status) = parse_status(&text).filter(|s| !s.zombie)
        {
            found[index].push((pid, status));
        }
    }
    Ok(found)
}

fn proc_dir(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn is_daemon(program: &Path) -> bool {
    let name = program.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    DAEMONS.contains(&name.strip_suffix(SUFFIX).unwrap_or(name))
}

/// Inodes of a process's open sockets.
fn socket_inodes(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(proc_dir(pid).join("fd")).into_iter().flatten().flatten();
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.filter_map(inode).collect()
}

fn parse_status(text: &str) -> Option<ProcStatus> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    Some(ProcStatus {
        parent: field("PPid")?.parse().ok()?,
        zombie: field("State")?.starts_with(['Z', 'X']),
        // Process IDs from the outermost to the innermost namespace.
        first: field("NSpid")?.split_whitespace().next_back() == Some("1"),
    })
}

fn listeners(table: &str) -> Vec<ListeningSocket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (_, port) = address.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (*state == LISTEN).then_some(ListeningSocket { port, inode: inode.parse().ok()? })
    };
    table.lines().skip(1).filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_are_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:0016 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
";
        assert_eq!(listeners(table), [ListeningSocket { port: 8080, inode: 4711 }]);
        let six = "head\n 0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7\n";
        assert_eq!(listeners(six), [ListeningSocket { port: 22, inode: 7 }]);
        assert_eq!(listeners("head\n 0: nonsense 0A\n"), []);
    }

    #[test]
    fn first_process_and_zombies_are_recognised() {
        let text = |state: &str, pids: &str| {
            format!("Name:\tsh\nState:\t{state}\nPPid:\t12\nNSpid:\t{pids}\n")
        };
        let expected = |zombie, first| Some(ProcStatus { parent: 12, zombie, first });
        assert_eq!(parse_status(&text("S (sleeping)", "40\t1")), expected(false, true));
        assert_eq!(parse_status(&text("Z (zombie)", "41\t11")), expected(true, false));
        assert_eq!(parse_status("Name:\tsh\n"), None);
    }
}
