//! Processes of ranks: this program, executed again.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use regatta_testbed::{REQUIRE_LIBFABRIC, skip};

use crate::child::{Task, VARIABLE};

/// A rank notices a hang itself, and says where; after this time, and a second for each MiB of a connection,
/// it is killed.
const LIMIT: Duration = Duration::from_secs(100);

/// Variables that the environment of the tests must not set.
const UNSET: [&str; 6] = [
    "REGATTA_NET",
    "REGATTA_FABRIC",
    "REGATTA_NET_TIMEOUT",
    "REGATTA_LIBFABRIC",
    "NCCL_SOCKET_IFNAME",
    "FI_PROVIDER",
];

/// A folder that is removed at the end of a test.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new() -> Self {
        Self::within(std::env::temp_dir())
    }

    pub fn within(parent: PathBuf) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("regatta-fake-net-host-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Only newer versions of libfabric have this provider.
const OPTIONAL: &str = "net";

/// The providers that libfabric has; for the others, says so, or fails if they are required.
pub fn providers() -> impl Iterator<Item = &'static str> {
    let available = regatta_fabric::available_providers();
    ["tcp", "tcp;ofi_rxm", "net", "shm"].into_iter().filter(move |provider| match &available {
        Err(why) => {
            skip(REQUIRE_LIBFABRIC, format_args!("{provider}: {why}"));
            false
        }
        Ok(all) => {
            let end_of = |name: &String| name.strip_prefix(provider)?.chars().next();
            let is_available = all.iter().any(|name| matches!(end_of(name), Some('/' | ';')));
            if !is_available && *provider == OPTIONAL {
                eprintln!("skipped: libfabric has no provider {provider}");
            } else if !is_available {
                skip(REQUIRE_LIBFABRIC, format_args!("libfabric has no provider {provider}"));
            }
            is_available
        }
    })
}

/// Arguments of this program that run a task.
pub const ARGUMENTS: [&str; 5] =
    ["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"];

/// The command of a rank on this machine, without a provider.
pub fn command(task: &Task) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(ARGUMENTS).env("NCCL_SOCKET_IFNAME", "lo");
    prepare(&mut command, task);
    command
}

/// Sets the environment of a rank. Some seeds move large messages in threads of the plug-in.
pub fn prepare(command: &mut Command, task: &Task) {
    let is_set = |name: &str| command.get_envs().any(|(set, _)| set == name);
    let unset: Vec<&str> = UNSET.into_iter().filter(|name| !is_set(name)).collect();
    for name in unset {
        command.env_remove(name);
    }
    command.env("REGATTA_NET_THREADS", (task.seed % 3).to_string());
    command.env(VARIABLE, task.to_text());
}

/// A rank that runs.
pub struct Rank {
    child: Child,
    log: PathBuf,
    limit: Duration,
}

impl Rank {
    pub fn start(task: &Task, mut command: Command) -> Self {
        let name = format!("log-{:?}-{}", task.scenario, task.rank);
        let log = task.folder.join(name);
        let file = std::fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let limit = LIMIT + Duration::from_secs(task.bytes >> 20);
        LazyLock::force(&STARTED);
        Self { child: command.spawn().unwrap(), log, limit }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.id() as libc::pid_t, signal) }, 0);
    }

    /// Waits for a file that it writes.
    #[track_caller]
    pub fn wait_for(&mut self, path: &Path) {
        let start = Instant::now();
        while !path.exists() {
            let has_ended = self.child.try_wait().unwrap().is_some();
            if has_ended || start.elapsed() > self.limit {
                panic!("no {path:?}:\n{}", all_output(&self.log));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end; its status and output.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > self.limit {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        (status, read(&self.log))
    }

    /// Waits for its success; its output.
    #[track_caller]
    pub fn succeed(self) -> String {
        let log = self.log.clone();
        let (status, text) = self.finish();
        assert!(status.success(), "{status}\n{}", all_output(&log));
        text
    }
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned()
}

/// The output of all ranks of a folder: the first that failed may be another.
fn all_output(log: &Path) -> String {
    let files = std::fs::read_dir(log.parent().unwrap()).unwrap().flatten();
    let logs = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"log-"));
    logs.map(|file| format!("{:?}:\n{}\n", file.file_name(), read(&file.path()))).collect()
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a task as one rank.
#[track_caller]
pub fn run_single(task: &Task, provider: &str) -> String {
    let mut command = command(task);
    command.env("REGATTA_FABRIC", provider);
    Rank::start(task, command).succeed()
}

/// Runs a task as two ranks.
#[track_caller]
pub fn run_pair(task: &Task, provider: &str) {
    let ranks = [0, 1].map(|rank| {
        let task = Task { rank, ..task.clone() };
        let mut command = command(&task);
        command.env("REGATTA_FABRIC", provider);
        (Rank::start(&task, command), rank)
    });
    let ends = ranks.map(|(rank, number)| (rank.id(), number, rank.finish()));
    let all: String = ends
        .iter()
        .map(|(_, rank, (status, text))| format!("rank {rank}: {status}\n{text}\n"))
        .collect();
    for (id, _, (status, _)) in &ends {
        assert!(status.success(), "{provider}, {task:?}:\n{all}");
        assert_eq!(segments(*id), Vec::<String>::new(), "{provider}, {task:?}: shared memory left");
    }
}

/// When the first rank of these tests was started.
static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// Shared memory of a process. That of an earlier one with the same number does not count: numbers are reused, and
/// the memory of a killed process stays.
pub fn segments(process: u32) -> Vec<String> {
    let is_recent = |entry: &DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified >= *STARTED)
    };
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten().filter(is_recent);
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.split(':').next() == Some(&process.to_string())).collect()
}
