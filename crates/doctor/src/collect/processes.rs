//! Processes from procfs.

use std::collections::BTreeSet;

use regatta_discover::{Sysroot, procfs};

/// Clock ticks per second in procfs, a constant of the kernel's interface.
const TICKS_PER_SECOND: u64 = 100;

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) parent: u32,
    pub(super) session: u32,
    pub(super) has_terminal: bool,
    /// Name of the program.
    pub(super) name: String,
    /// Arguments, separated by spaces; empty for kernel threads.
    pub(super) command: String,
    /// CPU time in ticks.
    pub(super) cpu_ticks: u64,
    /// Start in ticks since the boot.
    pub(super) start_ticks: u64,
}

impl Process {
    /// Age in seconds.
    pub(super) fn age(&self, uptime: u64) -> u64 {
        uptime.saturating_sub(self.start_ticks / TICKS_PER_SECOND)
    }

    /// The share of a CPU that it used in its lifetime, in percent.
    pub(super) fn cpu_percent(&self, uptime: u64) -> u32 {
        let lifetime = (self.age(uptime) * TICKS_PER_SECOND).max(1);
        u32::try_from(self.cpu_ticks.saturating_mul(100) / lifetime).unwrap_or(u32::MAX)
    }
}

/// All visible processes.
pub(super) fn list(root: &Sysroot) -> Vec<Process> {
    let pids = root.list_dir("/proc").into_iter().filter_map(|name| name.parse().ok());
    pids.filter_map(|pid| read(root, pid)).collect()
}

fn read(root: &Sysroot, pid: u32) -> Option<Process> {
    let text = |file: &str| root.read_text(&format!("/proc/{pid}/{file}"));
    let mut process = parse_stat(&text("stat")?)?;
    process.pid = pid;
    process.uid = procfs::user(root, pid)?;
    process.command = text("cmdline")?.replace('\0', " ").trim().to_owned();
    Some(process)
}

/// Parses `/proc/PID/stat`. The name in parentheses may contain anything.
fn parse_stat(stat: &str) -> Option<Process> {
    let (start, end) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(start + 1..end)?.to_owned();
    let fields: Vec<&str> = stat.get(end + 1..)?.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let id = |field: usize| u32::try_from(number(field)?).ok();
    Some(Process {
        name,
        parent: id(4)?,
        session: id(6)?,
        has_terminal: fields.get(7 - 3)? != &"0",
        cpu_ticks: number(14)?.saturating_add(number(15)?),
        start_ticks: number(22)?,
        ..Process::default()
    })
}

/// Environment variables of a process, as far as this process may read them.
pub(super) fn environment(root: &Sysroot, pid: u32) -> Vec<(String, String)> {
    let text = root.read_text(&format!("/proc/{pid}/environ")).unwrap_or_default();
    let pair = |entry: &str| entry.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    text.split('\0').filter_map(pair).collect()
}

/// The files that a process has open or mapped, as far as this process may read them.
pub(super) fn open_files(root: &Sysroot, pid: u32) -> BTreeSet<String> {
    let dir = format!("/proc/{pid}/fd");
    let target = |name: String| {
        let link = std::fs::read_link(root.path(&format!("{dir}/{name}"))).ok()?;
        Some(link.to_string_lossy().into_owned())
    };
    let mut files: BTreeSet<String> = root.list_dir(&dir).into_iter().filter_map(target).collect();
    let maps = root.read_text(&format!("/proc/{pid}/maps")).unwrap_or_default();
    files.extend(maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned())));
    files
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stat_lines_are_parsed() {
        let stat = "4242 (tmux: a) b) S 1 4242 4242 34816 4242 4194304 1 0 0 0 250 50 0 0 20 0 1 0 \
                    9000 1 1";
        let process = parse_stat(stat).unwrap();
        assert_eq!(process.name, "tmux: a) b");
        assert_eq!((process.parent, process.session, process.has_terminal), (1, 4242, true));
        assert_eq!((process.cpu_ticks, process.start_ticks), (300, 9000));
        assert_eq!(process.age(100), 10);
        assert_eq!(process.cpu_percent(100), 30);
    }

    proptest! {
        #[test]
        fn stat_parser_never_panics(text in ".*", numbers in "[0-9 ()S-]*") {
            let _ = parse_stat(&text);
            let _ = parse_stat(&numbers);
        }
    }
}
