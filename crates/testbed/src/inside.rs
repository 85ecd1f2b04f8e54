//! What runs in a host, and what listens there, read from the machine's `/proc`.

use crate::error::{TestbedError, io};
use crate::host::Host;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs that belong to the host and not to a job. The last two are parts of newer sshd.
const DAEMONS: [&str; 7] =
    ["slurmctld", "slurmd", "slurmstepd", "munged", "sshd", "sshd-session", "sshd-auth"];
/// What Debian adds to the names of Slurm's programs.
const SUFFIX: &str = "-wlm";
/// How `/proc/net/tcp` writes that a socket listens.
const LISTEN: &str = "0A";

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number on this machine, not the one it has in the host.
    pub pid: u32,
    /// Its parent's number on this machine.
    pub parent: u32,
    /// Its program and arguments, with spaces between.
    pub command: String,
}

/// A listening socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) port: u16,
    inode: u64,
}

/// What `/proc/<pid>/status` tells of a process.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    parent: u32,
    zombie: bool,
    /// Whether it is the first process of its namespace.
    first: bool,
}

/// The processes of a host, without its first one and its daemons. What has ended and only waits
/// to be reaped does not count.
pub(crate) fn jobs(host: &Host) -> Result<Vec<Process>, TestbedError> {
    let mut jobs = Vec::new();
    for (pid, status) in living(host)? {
        let folder = folder(pid);
        // A process may end between any two looks at it.
        let (Ok(program), Ok(words)) =
            (fs::read_link(folder.join("exe")), fs::read(folder.join("cmdline")))
        else {
            continue;
        };
        if !status.first && !is_daemon(&program) {
            let command = String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned();
            jobs.push(Process { pid, parent: status.parent, command });
        }
    }
    Ok(jobs)
}

/// Whether nothing at all runs in a host any more.
pub(crate) fn is_dead(host: &Host) -> Result<bool, TestbedError> {
    Ok(living(host)?.is_empty())
}

/// The TCP ports that something other than the host's daemons listens on.
pub(crate) fn listening(host: &Host) -> Result<Vec<u16>, TestbedError> {
    if is_dead(host)? {
        return Ok(Vec::new());
    }
    let mut daemons = BTreeSet::new();
    for (pid, _) in living(host)? {
        if fs::read_link(folder(pid).join("exe")).is_ok_and(|p| is_daemon(&p)) {
            daemons.extend(held(pid));
        }
    }
    let mut ports: Vec<u16> = sockets(host)?
        .into_iter()
        .filter(|s| !daemons.contains(&s.inode))
        .map(|s| s.port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// The listening sockets of a host.
pub(crate) fn sockets(host: &Host) -> Result<Vec<Socket>, TestbedError> {
    let mut all = Vec::new();
    for name in ["tcp", "tcp6"] {
        let path = folder(host.holder()).join("net").join(name);
        match fs::read_to_string(&path) {
            Ok(table) => all.extend(listeners(&table)),
            // A kernel without IPv6.
            Err(e) if name == "tcp6" && e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io("read", path)(e)),
        }
    }
    Ok(all)
}

/// Every process of a host that is not a zombie.
fn living(host: &Host) -> Result<Vec<(u32, Status)>, TestbedError> {
    let entries = fs::read_dir("/proc").map_err(io("read", "/proc"))?;
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found = Vec::new();
    for pid in pids {
        if fs::read_link(folder(pid).join("ns/pid")).is_ok_and(|ns| host.holds(&ns))
            && let Ok(text) = fs::read_to_string(folder(pid).join("status"))
            && let Some(status) = status(&text).filter(|s| !s.zombie)
        {
            found.push((pid, status));
        }
    }
    Ok(found)
}

fn folder(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn is_daemon(program: &Path) -> bool {
    let name = program.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    DAEMONS.contains(&name.strip_suffix(SUFFIX).unwrap_or(name))
}

/// The numbers of the sockets a process holds.
fn held(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(folder(pid).join("fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let target = fs::read_link(e.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

fn status(text: &str) -> Option<Status> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    Some(Status {
        parent: field("PPid")?.parse().ok()?,
        zombie: field("State")?.starts_with(['Z', 'X']),
        // The numbers from the outermost namespace to its own.
        first: field("NSpid")?.split_whitespace().next_back() == Some("1"),
    })
}

fn listeners(table: &str) -> Vec<Socket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (_, port) = address.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (*state == LISTEN).then_some(Socket { port, inode: inode.parse().ok()? })
    };
    table.lines().skip(1).filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_are_taken_from_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:0016 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
";
        assert_eq!(listeners(table), [Socket { port: 8080, inode: 4711 }]);
        let six = "head\n 0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7\n";
        assert_eq!(listeners(six), [Socket { port: 22, inode: 7 }]);
        assert_eq!(listeners("head\n 0: nonsense 0A\n"), []);
    }

    #[test]
    fn the_first_process_and_zombies_are_told_apart() {
        let text = |state: &str, numbers: &str| {
            format!("Name:\tsh\nState:\t{state}\nPPid:\t12\nNSpid:\t{numbers}\n")
        };
        let wanted = |zombie, first| Some(Status { parent: 12, zombie, first });
        assert_eq!(status(&text("S (sleeping)", "40\t1")), wanted(false, true));
        assert_eq!(status(&text("Z (zombie)", "41\t11")), wanted(true, false));
        assert_eq!(status("Name:\tsh\n"), None);
    }
}
