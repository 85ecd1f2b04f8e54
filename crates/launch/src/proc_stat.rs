//! Process states, CPU time and OOM kills, from /proc and the cgroup file system.

use std::path::PathBuf;

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
    file: Option<PathBuf>,
    before: u64,
}

impl OomCounter {
    /// Starts counting.
    pub fn start() -> Self {
        let file = counter();
        let before = file.as_ref().and_then(read_count).unwrap_or(0);
        Self { file, before }
    }

    /// Whether an OOM kill happened since the last call.
    pub fn has_increased(&mut self) -> bool {
        let now = self.file.as_ref().and_then(read_count).unwrap_or(self.before);
        let increased = now > self.before;
        self.before = now;
        increased
    }
}

/// The counter file of this process.
fn counter() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    candidates(&groups).into_iter().map(PathBuf::from).find(|file| read_count(file).is_some())
}

/// Candidate counter files, closest first: `memory.events` (cgroup v2, includes descendants) or
/// `memory.oom_control` (v1, this group only; the kill is counted in the victim's own group,
/// whichever ancestor hit its limit). A container may see its group as the root.
fn candidates(groups: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_end_matches('/'));
        let has_memory = controllers.split(',').any(|controller| controller == "memory");
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.events"),
            _ if has_memory => ("/sys/fs/cgroup/memory", "memory.oom_control"),
            _ => return None,
        };
        Some([format!("{mount}{path}/{file}"), format!("{mount}/{file}")])
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
    fn counter_files_of_cgroup_v1_and_v2() {
        let one = candidates("9:name=systemd:/\n4:cpu,memory:/slurm/job_7/task_0\n0::/\n");
        assert_eq!(one[0], "/sys/fs/cgroup/memory/slurm/job_7/task_0/memory.oom_control");
        assert_eq!(one[1], "/sys/fs/cgroup/memory/memory.oom_control");
        let two = candidates("0::/system.slice/slurmstepd.scope/job_7/step_0\n");
        let group = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0";
        assert_eq!(two[0], format!("{group}/memory.events"));
        assert_eq!(candidates("nonsense\n"), ["/proc/vmstat"]);
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
