//! Processes and shared memory that earlier jobs left behind.
//!
//! A process of the user outside of the job is not a leftover by itself: a login node or a laptop has
//! many. It counts if it holds a GPU, an RDMA device or shared memory, or uses the CPUs, is older than
//! this process, has no terminal, and is no service.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use regatta_discover::{Env, Sysroot};

use super::processes::{Process, environment, list, open_files};
use crate::facts::Leftover;

const SHM: &str = "/dev/shm";
/// Younger files may belong to a program that is about to open them.
const MIN_FILE_AGE: Duration = Duration::from_secs(60);
/// Share of a CPU, in percent of its lifetime, from which a process without devices counts.
const MIN_CPU_PERCENT: u32 = 5;

/// Variables with the ID of the scheduler's job.
const JOB_VARIABLES: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"];

/// Services and interactive programs, by the start of their name.
const SERVICES: [&str; 24] = [
    "systemd",
    "(sd-pam)",
    "dbus",
    "sshd",
    "ssh-agent",
    "gpg-agent",
    "slurm",
    "srun",
    "munge",
    "pbs_",
    "flux-broker",
    "tmux",
    "screen",
    "pipewire",
    "wireplumber",
    "pulseaudio",
    "gnome",
    "Xorg",
    "Xwayland",
    "nvidia-persist",
    "nvidia-cuda-mps",
    "nv-hostengine",
    "dcgm",
    "init",
];

/// Shared memory of communication libraries; without a scheduler other files belong to the desktop.
const KNOWN_FILES: [&str; 8] =
    ["nccl-", "regatta", "torch_", "cuda.shm.", "psm", "vader_segment", "rccl-", "sm_segment"];

/// What tells the processes of this job from leftovers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobIdentity {
    /// A process of the job on this node, usually this one.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// ID of the scheduler's job. Without one only orphaned processes with devices and shared memory
    /// of known libraries count: the machine may be in use otherwise.
    pub scheduler_job: Option<String>,
}

impl JobIdentity {
    /// The job of this process.
    pub fn of_process(env: &Env) -> Self {
        Self {
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            scheduler_job: JOB_VARIABLES.iter().find_map(|name| env.get(name)).map(str::to_owned),
        }
    }
}

pub(super) fn collect(root: &Sysroot, job: &JobIdentity) -> Vec<Leftover> {
    let processes = list(root);
    let files: BTreeMap<u32, BTreeSet<String>> =
        processes.iter().map(|process| (process.pid, open_files(root, process.pid))).collect();
    let mut found = Vec::new();
    let uptime = root.read_text("/proc/uptime").unwrap_or_default();
    let uptime: f64 = uptime.split_whitespace().next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
    let scan = ProcessScan { root, job, processes: &processes, uptime: uptime as u64 };
    found.extend(processes.iter().filter_map(|process| {
        let held = files.get(&process.pid).map(held).unwrap_or_default();
        scan.leftover(process, held)
    }));
    // In a container with a PID namespace of its own the users of a file are not visible, but there
    // the files of /dev/shm are usually private, too.
    let in_use: BTreeSet<&str> = files.values().flatten().map(String::as_str).collect();
    found.extend(shared_memory(root, job, &in_use));
    found.extend(system_v(root, job.uid));
    found
}

/// The kinds of devices and shared memory among open files.
fn held(files: &BTreeSet<String>) -> Vec<String> {
    let kinds: [(&str, &[&str]); 3] = [
        ("gpu", &["/dev/nvidia", "/dev/kfd", "/dev/dri/renderD"]),
        ("rdma", &["/dev/infiniband/", "/dev/cxi"]),
        ("shared-memory", &["/dev/shm/"]),
    ];
    let is_held = |prefixes: &[&str]| {
        files.iter().any(|file| prefixes.iter().any(|prefix| file.starts_with(prefix)))
    };
    kinds.iter().filter(|(_, p)| is_held(p)).map(|(kind, _)| (*kind).to_owned()).collect()
}

struct ProcessScan<'a> {
    root: &'a Sysroot,
    job: &'a JobIdentity,
    processes: &'a [Process],
    uptime: u64,
}

impl ProcessScan<'_> {
    fn leftover(&self, process: &Process, holds: Vec<String>) -> Option<Leftover> {
        let own = self.find(self.job.pid)?;
        let is_candidate = process.uid == self.job.uid
            && !process.command.is_empty()
            && !process.has_terminal
            && process.start_ticks < own.start_ticks
            && process.session != own.session
            && !is_service(&process.name);
        if !is_candidate {
            return None;
        }
        let cpu_percent = process.cpu_percent(self.uptime);
        let counts = match self.job.scheduler_job {
            Some(_) => !holds.is_empty() || cpu_percent > MIN_CPU_PERCENT,
            None => holds.iter().any(|kind| kind != "shared-memory") && self.is_orphan(process),
        };
        if !counts || self.is_related(process) || self.is_of_live_job(process) {
            return None;
        }
        let (pid, seconds) = (process.pid, process.age(self.uptime));
        let command = process.command.chars().take(80).collect();
        Some(Leftover::Process { pid, command, seconds, cpu_percent, holds })
    }

    fn find(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Whether its parent and session leader have ended.
    fn is_orphan(&self, process: &Process) -> bool {
        let leader = self.find(process.session);
        process.parent <= 1 && leader.is_none_or(|leader| leader.pid == process.pid)
    }

    /// Whether it is an ancestor or descendant of the job's process.
    fn is_related(&self, process: &Process) -> bool {
        let is_above = |above: u32, below: u32| {
            let mut pid = below;
            // Bounded, because PIDs may be reused between two reads.
            for _ in 0..self.processes.len() {
                if pid == above {
                    return true;
                }
                let Some(next) = self.find(pid).map(|p| p.parent).filter(|p| *p > 0) else { break };
                pid = next;
            }
            false
        };
        is_above(process.pid, self.job.pid) || is_above(self.job.pid, process.pid)
    }

    /// Whether it belongs to this job or to another one that still runs on this node.
    fn is_of_live_job(&self, process: &Process) -> bool {
        let variables = environment(self.root, process.pid);
        let id = JOB_VARIABLES.iter().find_map(|name| {
            variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
        });
        id.is_some_and(|id| {
            let step = format!("slurmstepd: [{id}.");
            self.job.scheduler_job.as_deref() == Some(id)
                || self.processes.iter().any(|p| p.command.starts_with(&step))
        })
    }
}

fn is_service(name: &str) -> bool {
    SERVICES.iter().any(|service| name.starts_with(service))
}

/// The user's files in `/dev/shm` that no visible process has open.
fn shared_memory(root: &Sysroot, job: &JobIdentity, in_use: &BTreeSet<&str>) -> Vec<Leftover> {
    let now = SystemTime::now();
    let leftover = |name: String| {
        let path = format!("{SHM}/{name}");
        let metadata = std::fs::symlink_metadata(root.path(&path)).ok()?;
        let age = metadata.modified().ok().and_then(|time| now.duration_since(time).ok())?;
        let is_known = KNOWN_FILES.iter().any(|prefix| name.starts_with(prefix));
        let counts = metadata.is_file()
            && metadata.uid() == job.uid
            && age >= MIN_FILE_AGE
            && (is_known || job.scheduler_job.is_some())
            && !in_use.contains(path.as_str());
        counts.then_some(Leftover::SharedMemory { path, bytes: metadata.len() })
    };
    root.list_dir(SHM).into_iter().filter_map(leftover).collect()
}

/// The user's System V segments without attached processes.
fn system_v(root: &Sysroot, uid: u32) -> Vec<Leftover> {
    let text = root.read_text("/proc/sysvipc/shm").unwrap_or_default();
    text.lines().filter_map(|line| parse_segment(line, uid)).collect()
}

/// A line of `key shmid perms size cpid lpid nattch uid ...`.
fn parse_segment(line: &str, uid: u32) -> Option<Leftover> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let is_leftover = number(6)? == 0 && number(7)? == u64::from(uid);
    let (id, bytes) = (u32::try_from(number(1)?).ok()?, number(3)?);
    is_leftover.then_some(Leftover::SystemV { id, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempTree;

    const OWN: u32 = 500;

    /// A node whose job's process is `OWN` in a Slurm job step.
    fn node() -> TempTree {
        let tree = TempTree::new();
        tree.file("/proc/uptime", "10000.0 1.0\n");
        process(&tree, 1, 0, 0, "systemd", "", 0);
        process(&tree, 400, 1, 400, "slurmstepd", "", 0);
        process(&tree, OWN, 400, OWN, "regatta", "SLURM_JOB_ID=7", 0);
        tree.file(&format!("/proc/{OWN}/stat"), stat("regatta", 400, OWN, 0, 900_000));
        tree
    }

    fn stat(name: &str, parent: u32, session: u32, cpu: u64, start: u64) -> String {
        format!("0 ({name}) S {parent} 0 {session} 0 0 0 0 0 0 0 {cpu} 0 0 0 0 0 1 0 {start} 0\n")
    }

    /// Writes a process that started at 1,000 s, 9,000 s ago.
    fn process(
        tree: &TempTree,
        pid: u32,
        parent: u32,
        session: u32,
        name: &str,
        environ: &str,
        cpu_ticks: u64,
    ) {
        let file = |file: &str, text: &str| tree.file(&format!("/proc/{pid}/{file}"), text);
        file("stat", &stat(name, parent, session, cpu_ticks, 100_000));
        file("status", "Name: x\nUid:\t1000\t1000\t1000\t1000\n");
        file("cmdline", &format!("{name}\0run.py\0"));
        file("environ", &format!("HOME=/home/ann\0{environ}\0"));
    }

    fn pids(tree: &TempTree, scheduler_job: Option<&str>) -> Vec<u32> {
        let scheduler_job = scheduler_job.map(str::to_owned);
        let job = JobIdentity { pid: OWN, uid: 1000, scheduler_job };
        let pid = |leftover: &Leftover| match leftover {
            Leftover::Process { pid, .. } => Some(*pid),
            _ => None,
        };
        collect(&tree.root(), &job).iter().filter_map(pid).collect()
    }

    #[test]
    fn processes_with_devices_outside_of_the_job_are_leftovers() {
        let tree = node();
        process(&tree, 600, 1, 600, "python", "SLURM_JOB_ID=3", 0);
        tree.link("/proc/600/fd/4", "/dev/nvidia0");
        process(&tree, 601, 1, 601, "python", "SLURM_JOB_ID=3", 0);
        process(&tree, 602, 1, 602, "python", "", 500_000);
        assert_eq!(pids(&tree, Some("7")), [600, 602], "601 holds nothing and is idle");
        assert_eq!(pids(&tree, None), [600], "an orphan with a GPU");
    }

    #[test]
    fn processes_of_live_jobs_are_none() {
        let tree = node();
        // A rank of this job, a rank of another running job, a child of the own process.
        process(&tree, 600, 400, 600, "python", "SLURM_JOB_ID=7", 500_000);
        process(&tree, 601, 1, 601, "python", "SLURM_JOB_ID=8", 500_000);
        process(&tree, 602, 1, 602, "slurmstepd", "", 0);
        tree.file("/proc/602/cmdline", "slurmstepd: [8.0]\0");
        process(&tree, 603, OWN, 603, "worker", "", 500_000);
        assert_eq!(pids(&tree, Some("7")), Vec::<u32>::new());
    }

    #[test]
    fn services_terminals_and_other_users_are_none() {
        let tree = node();
        process(&tree, 600, 1, 600, "dbus-daemon", "", 500_000);
        process(&tree, 601, 1, 601, "vim", "", 500_000);
        tree.file(
            "/proc/601/stat",
            stat("vim", 1, 601, 500_000, 1000).replace(" 601 0", " 601 34816"),
        );
        process(&tree, 602, 1, 602, "python", "", 500_000);
        tree.file("/proc/602/status", "Uid:\t1001\t1001\t1001\t1001\n");
        process(&tree, 603, 1, 603, "kworker", "", 500_000);
        tree.file("/proc/603/cmdline", "");
        assert_eq!(pids(&tree, Some("7")), Vec::<u32>::new());
    }

    fn files(tree: &TempTree, scheduler_job: Option<&str>) -> Vec<String> {
        let uid = rustix::process::getuid().as_raw();
        let job = JobIdentity { pid: OWN, uid, scheduler_job: scheduler_job.map(str::to_owned) };
        let path = |leftover: Leftover| match leftover {
            Leftover::SharedMemory { path, .. } => Some(path),
            _ => None,
        };
        collect(&tree.root(), &job).into_iter().filter_map(path).collect()
    }

    #[test]
    fn unused_old_files_in_shared_memory_are_leftovers() {
        let tree = node();
        let old = SystemTime::now() - Duration::from_secs(3600);
        for name in ["nccl-abc", "nccl-open", "nccl-mapped", "desktop"] {
            let path = format!("{SHM}/{name}");
            tree.file(&path, "1234");
            let file = std::fs::File::options().write(true).open(tree.root().path(&path)).unwrap();
            file.set_modified(old).unwrap();
        }
        tree.file("/dev/shm/nccl-new", "1234");
        tree.link(&format!("/proc/{OWN}/fd/3"), "/dev/shm/nccl-open");
        let maps = "7f0-7f1 rw-s 00000000 00:18 3    /dev/shm/nccl-mapped\n";
        tree.file(&format!("/proc/{OWN}/maps"), maps);
        assert_eq!(files(&tree, Some("7")), ["/dev/shm/desktop", "/dev/shm/nccl-abc"]);
        assert_eq!(files(&tree, None), ["/dev/shm/nccl-abc"]);
    }

    #[test]
    fn segments_without_processes_are_leftovers() {
        let line = |attached: u32, uid: u32| {
            format!("0 32770 1600 4194304 10 11 {attached} {uid} 100 1000 100 1 1 1 0 0")
        };
        let expected = Leftover::SystemV { id: 32770, bytes: 4 << 20 };
        assert_eq!(parse_segment(&line(0, 1000), 1000), Some(expected));
        assert_eq!(parse_segment(&line(1, 1000), 1000), None);
        assert_eq!(parse_segment(&line(0, 0), 1000), None);
        assert_eq!(parse_segment("key shmid perms size", 1000), None);
    }
}
