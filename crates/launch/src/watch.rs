//! What /proc and the cgroup tell of running ranks.

use std::path::PathBuf;

/// What a process is doing, in a few words. Of a shell or a tool that waits for its child, what
/// that is doing is what people want to know.
pub fn doing(pid: u32) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    if let Some(child) = read("wchan").filter(|w| w == "do_wait").and_then(|_| only_child(pid)) {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        return format!("waiting for {}, {}", name.trim(), doing(child));
    }
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

/// The child of a process that has one and no more.
fn only_child(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children.split_whitespace();
    children.next().filter(|_| children.next().is_none())?.parse().ok()
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

/// Counts the processes that the kernel killed because memory ran out: those of this cgroup, or
/// where it does not count, those of this machine.
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

/// The file that counts for this process.
fn counter() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    counters(&groups).into_iter().map(PathBuf::from).find(|file| read_count(file).is_some())
}

/// The files that may count, the closest first: `memory.events` (v2, with the groups below) or
/// `memory.oom_control` (v1, of the group alone; but it is the killed process's own group that
/// counts, whichever group above was full). A container may see its group as the root.
fn counters(groups: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, place) = (parts.next()?, parts.next()?.trim_end_matches('/'));
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.events"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.oom_control")
            }
            _ => return None,
        };
        Some([format!("{mount}{place}/{file}"), format!("{mount}/{file}")])
    };
    let mut files: Vec<String> = groups.lines().filter_map(of_line).flatten().collect();
    files.push("/proc/vmstat".to_owned());
    files
}

fn read_count(file: &PathBuf) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|l| l.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn either_version_of_cgroups_counts() {
        let one = counters("9:name=systemd:/\n4:cpu,memory:/slurm/job_7/task_0\n0::/\n");
        assert_eq!(one[0], "/sys/fs/cgroup/memory/slurm/job_7/task_0/memory.oom_control");
        assert_eq!(one[1], "/sys/fs/cgroup/memory/memory.oom_control");
        let two = counters("0::/system.slice/slurmstepd.scope/job_7/step_0\n");
        let group = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0";
        assert_eq!(two[0], format!("{group}/memory.events"));
        assert_eq!(counters("nonsense\n"), ["/proc/vmstat"]);
    }

    #[test]
    fn a_shell_that_waits_is_not_what_is_waited_for() {
        let mut shell = Command::new("sh").args(["-c", "sleep 600; true"]).spawn().unwrap();
        let start = std::time::Instant::now();
        let mut what = String::new();
        while !what.contains("sleep") && start.elapsed().as_secs() < 20 {
            what = doing(shell.id());
        }
        let child = only_child(shell.id());
        shell.kill().unwrap();
        shell.wait().unwrap();
        if let Some(pid) = child {
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        assert!(what.starts_with("waiting for sleep, "), "{what}");
    }
}
