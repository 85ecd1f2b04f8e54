//! What /proc and the cgroup tell of running ranks.

use std::path::PathBuf;

/// What a process is doing, in a few words.
pub fn doing(pid: u32) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let state = read("stat").and_then(|s| s.rsplit_once(')')?.1.trim_start().chars().next());
    let place = read("wchan").filter(|w| !w.is_empty() && w != "0");
    match (state, place) {
        (Some('R'), _) => "running".to_owned(),
        (Some('Z'), _) | (None, _) => "over".to_owned(),
        (Some('D'), place) => format!("waiting for a device in {}", place.unwrap_or_default()),
        (Some('T' | 't'), _) => "stopped".to_owned(),
        (Some(_), Some(place)) => format!("waiting in {place}"),
        (Some(_), None) => "waiting".to_owned(),
    }
}

/// The time on processors of some processes, in the kernel's ticks.
pub fn ticks(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let (user, system): (u64, u64) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(user + system)
    };
    pids.iter().filter_map(of).sum()
}

/// Counts the processes that the kernel killed in this cgroup because memory ran out.
#[derive(Debug)]
pub struct OomWatch {
    file: Option<PathBuf>,
    before: u64,
}

impl OomWatch {
    /// Starts counting.
    pub fn start() -> Self {
        let file = counter();
        let before = file.as_ref().and_then(read_count).unwrap_or(0);
        Self { file, before }
    }

    /// Whether the kernel killed for memory since the last question.
    pub fn has_killed(&mut self) -> bool {
        let now = self.file.as_ref().and_then(read_count).unwrap_or(self.before);
        let more = now > self.before;
        self.before = now;
        more
    }
}

/// The file that counts: `memory.events` (v2) or `memory.oom_control` (v1) of this process's group.
fn counter() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let files = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, place) = (parts.next()?, parts.next()?);
        match controllers {
            "" => Some(format!("/sys/fs/cgroup{place}/memory.events")),
            c if c.split(',').any(|c| c == "memory") => {
                Some(format!("/sys/fs/cgroup/memory{place}/memory.oom_control"))
            }
            _ => None,
        }
    });
    files.map(PathBuf::from).find(|file| file.exists())
}

fn read_count(file: &PathBuf) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|l| l.strip_prefix("oom_kill "))?.trim().parse().ok()
}
