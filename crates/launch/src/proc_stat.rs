//! Process states, CPU time and OOM kills, from /proc and the cgroup file system.

use regatta_discover::{Sysroot, procfs};

/// What a process is doing, as in "waiting in futex_wait_queue". For a shell or a wrapper that
/// waits for its only child, the child's state is included.
pub fn describe_state(pid: u32) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    if let Some(child) = read("wchan").filter(|w| w == "do_wait").and_then(|_| only_child(pid)) {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        return format!(
            "waiting for its child process {} ({})",
            name.trim(),
            describe_state(child)
        );
    }
    let state = read("stat").and_then(|s| s.rsplit_once(')')?.1.trim_start().chars().next());
    let wchan = read("wchan").filter(|w| !w.is_empty() && w != "0");
    let location = wchan.map_or_else(String::new, |function| format!(" in {function}"));
    match state {
        Some('R') => "running".to_owned(),
        Some('Z') | None => "exited".to_owned(),
        Some('D') => format!("in uninterruptible sleep{location}"),
        Some('T' | 't') => "stopped".to_owned(),
        Some(_) => format!("waiting{location}"),
    }
}

/// The child of a process that has exactly one.
fn only_child(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children.split_whitespace();
    children.next().filter(|_| children.next().is_none())?.parse().ok()
}

/// Total user and system time of processes, in clock ticks.
pub fn cpu_ticks(pids: &[u32]) -> u64 {
    let ticks = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(next()? + next()?)
    };
    pids.iter().filter_map(ticks).sum()
}

/// Counts OOM kills in this cgroup, or on the whole machine where the cgroup has no counter.
#[derive(Debug)]
pub struct OomCounter {
    file: Option<String>,
    before: u64,
}

impl OomCounter {
    /// Starts counting.
    pub fn start() -> Self {
        let file = counters(&Sysroot::live()).find(|file| read_count(file).is_some());
        let before = file.as_deref().and_then(read_count).unwrap_or(0);
        Self { file, before }
    }

    /// Whether an OOM kill happened since the last call.
    pub fn has_increased(&mut self) -> bool {
        let now = self.file.as_deref().and_then(read_count).unwrap_or(self.before);
        let increased = now > self.before;
        self.before = now;
        increased
    }
}

/// Candidate counter files, closest first: `memory.events` (cgroup v2, includes descendants) or
/// `memory.oom_control` (v1, this group only; the kill is counted in the victim's own group,
/// whichever ancestor hit its limit). A container may see its group as the root.
fn counters(root: &Sysroot) -> impl Iterator<Item = String> {
    let files = ["memory.events", "memory.oom_control"];
    let of_dir = move |dir: String| files.map(|file| format!("{dir}/{file}"));
    let dirs = procfs::cgroup_dirs(root, "memory");
    dirs.into_iter().flat_map(of_dir).chain(["/proc/vmstat".to_owned()])
}

fn read_count(file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|l| l.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn counter_files_of_cgroup_v1_and_v2() {
        let candidates = |name: &str, groups: &str| -> Vec<String> {
            let name = format!("regatta-counters-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            std::fs::create_dir_all(root.join("proc/self")).unwrap();
            std::fs::write(root.join("proc/self/cgroup"), groups).unwrap();
            let found = counters(&Sysroot::at(&root)).collect();
            std::fs::remove_dir_all(root).unwrap();
            found
        };
        let one = candidates("one", "9:name=systemd:/\n4:cpu,memory:/slurm/job_7/task_0\n0::/\n");
        let of_memory = |file: &&String| file.ends_with("/memory.oom_control");
        let one: Vec<&String> = one.iter().filter(of_memory).collect();
        assert_eq!(one[0], "/sys/fs/cgroup/memory/slurm/job_7/task_0/memory.oom_control");
        assert_eq!(one[3], "/sys/fs/cgroup/memory/memory.oom_control");
        let two = candidates("two", "0::/system.slice/slurmstepd.scope/job_7/step_0\n");
        let group = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0";
        assert_eq!(two[0], format!("{group}/memory.events"));
        assert_eq!(candidates("none", "nonsense\n"), ["/proc/vmstat"]);
    }

    #[test]
    fn state_of_a_waiting_shell_includes_its_child() {
        let mut shell = Command::new("sh").args(["-c", "sleep 600; true"]).spawn().unwrap();
        let start = std::time::Instant::now();
        let mut state = String::new();
        while !state.contains("process sleep") && start.elapsed().as_secs() < 20 {
            state = describe_state(shell.id());
        }
        let child = only_child(shell.id());
        shell.kill().unwrap();
        shell.wait().unwrap();
        if let Some(pid) = child {
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        assert!(state.starts_with("waiting for its child process sleep ("), "{state}");
    }
}
