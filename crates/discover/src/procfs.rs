//! Formats of procfs.

use crate::Sysroot;

/// Soft and hard limit of a line of `/proc/PID/limits` such as `Max open files   1024   4096   files`;
/// `u64::MAX` is unlimited.
pub fn limit(limits: &str, name: &str) -> Option<(u64, u64)> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((words.next()??, words.next()??))
}

/// Bytes of a line of a meminfo file: `MemTotal:  527998564 kB`, or `Node 0 MemTotal:  263 kB`.
pub fn memory(meminfo: &str, name: &str) -> Option<u64> {
    let (_, value) = meminfo.lines().find_map(|line| line.split_once(name))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The user of a process.
pub fn user(root: &Sysroot, pid: u32) -> Option<u32> {
    let status = root.read_text(&format!("/proc/{pid}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// The directories of this process's cgroup of a controller and of its parents, innermost first: v2
/// (`0::/path`), or v1 (`5:memory:/path`).
pub fn cgroup_dirs(root: &Sysroot, controller: &str) -> Vec<String> {
    let text = root.read_text("/proc/self/cgroup").unwrap_or_default();
    let mut dirs = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let base = match controllers {
            "" => "/sys/fs/cgroup".to_owned(),
            list if list.split(',').any(|name| name == controller) => {
                let joint = format!("/sys/fs/cgroup/{list}");
                if root.exists(&joint) { joint } else { format!("/sys/fs/cgroup/{controller}") }
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            dirs.push(format!("{base}{path}"));
            let Some((parent, _)) = path.rsplit_once('/') else { break };
            path = parent;
        }
    }
    dirs
}
