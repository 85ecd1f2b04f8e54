//! No process outlives a job on this node, whichever process is killed; and signals of terminals.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regatta_model::result::RankExit;
use support::TempDir;
use support::job::{rank_log, run_command, run_result, send_signal, shell_job, wait_until};

/// A rank with a child in its process group and a daemon in its own session, all of which ignore TERM.
/// Creates a file when all of them run.
const IGNORES_TERM: &str = "trap '' TERM HUP INT; loop='while :; do sleep 1; done'; \
    sh -c \"$loop\" & setsid sh -c \"echo > daemon$RANK; $loop\" >/dev/null 2>&1 & \
    until [ -e daemon$RANK ]; do sleep 0.02; done; echo > up$RANK; eval \"$loop\"";

/// A rank that appends to a file forever.
const COUNTING: &str = "echo $$ > pid; while :; do echo >> count; sleep 0.02; done";

const TSTP: i32 = 20;
const CONT: i32 = 18;

/// A child process, killed on drop.
struct KillOnDrop(Child);

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a job and discards its output.
fn spawn(job: &mut Command) -> KillOnDrop {
    KillOnDrop(job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Runs a job in its own process group, with the default action of INT, like an interactive shell.
fn in_foreground(job: &Command) -> Command {
    let mut env = Command::new("env");
    support::clean_env(&mut env).arg("--default-signal=INT").arg(job.get_program());
    env.args(job.get_args()).current_dir(job.get_current_dir().unwrap()).process_group(0);
    env
}

fn kill(words: &[&str]) {
    assert!(Command::new("kill").args(words).status().unwrap().success(), "kill {words:?}");
}

/// The worker process: the child of the reaper, and parent of the ranks.
fn worker_pid(started: &Child) -> String {
    let pid = started.id().to_string();
    let output = Command::new("ps").args(["--ppid", &pid, "-o", "pid="]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one worker: {text}");
    text.trim().to_owned()
}

/// All processes with this working directory: those of the job and their descendants.
fn processes_in(folder: &TempDir) -> Vec<String> {
    let is_inside = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.path())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.parse::<u32>().is_ok()).filter(is_inside).collect()
}

fn process_state(pid: &str) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()).unwrap_or('-')
}

/// Whether a shell is stopped, or is in vfork, where it cannot be stopped, with a stopped child.
fn is_stopped(shell: &str) -> bool {
    let children = Command::new("ps").args(["--ppid", shell, "-o", "pid="]).output().unwrap();
    let children = String::from_utf8(children.stdout).unwrap();
    let in_vfork = process_state(shell) == 'D'
        && children.lines().any(|child| process_state(child.trim()) == 'T');
    process_state(shell) == 'T' || in_vfork
}

fn count(folder: &TempDir) -> u64 {
    std::fs::metadata(folder.path().join("count")).map_or(0, |m| m.len())
}

fn spawn_ignoring_term(folder: &TempDir) -> KillOnDrop {
    let child = spawn(&mut shell_job(folder, &["-n", "2", "--run-dir", "run"], IGNORES_TERM));
    let up = |rank: u32| folder.path().join(format!("up{rank}")).exists();
    wait_until("the ranks and their daemons to start", || up(0) && up(1));
    // Reaper, worker, two ranks, two children and two daemons; each may also have a sleep.
    assert!(processes_in(folder).len() >= 8, "{:?}", processes_in(folder));
    child
}

#[test]
fn no_process_is_left_when_the_reaper_is_killed() {
    let folder = TempDir::new();
    let mut child = spawn_ignoring_term(&folder);
    send_signal(&child, 9);
    child.wait().unwrap();
    wait_until("all processes to exit", || processes_in(&folder).is_empty());
    assert!(!folder.path().join("run/result.json").exists(), "no rank is reported as failed");
}

#[test]
fn no_process_is_left_when_the_worker_is_killed() {
    let folder = TempDir::new();
    let mut child = spawn_ignoring_term(&folder);
    kill(&["-9", &worker_pid(&child)]);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    assert_eq!(processes_in(&folder), [""; 0], "the reaper exits last");
}

#[test]
fn no_process_is_left_when_the_job_is_terminated() {
    let folder = TempDir::new();
    let mut child = spawn_ignoring_term(&folder);
    send_signal(&child, 15);
    let events = folder.path().join("run/events.jsonl");
    wait_until("the signal to arrive", || {
        std::fs::read_to_string(&events).unwrap().contains("\"signal-sent\"")
    });
    send_signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "{:?}", run_result(&folder, "run"));
    assert_eq!(processes_in(&folder), [""; 0]);
}

/// A rank that logs a signal and runs until the file `go` exists.
fn logs_signal(signal: &str) -> String {
    format!("trap 'echo noted' {signal}; echo > up; until [ -e go ]; do sleep 0.05; done")
}

/// Asserts that a signal sent by `send` is handled once: a second one would kill the rank.
fn assert_handled_once(name: &str, number: i32, send: impl Fn(&Child)) {
    let folder = TempDir::new();
    let launch = shell_job(&folder, &["-n", "1", "--run-dir", "run"], &logs_signal(name));
    let mut child = spawn(&mut in_foreground(&launch));
    wait_until("the rank to start", || folder.path().join("up").exists());
    send(&child);
    wait_until("the signal to arrive", || rank_log(&folder, "run", 0, "out").contains("noted"));
    // Time for a duplicate to arrive.
    std::thread::sleep(Duration::from_millis(300));
    folder.write("go", "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let events = std::fs::read_to_string(folder.path().join("run/events.jsonl")).unwrap();
    let event = format!("\"signal-received\",\"signal\":{number}");
    assert_eq!(events.matches(&event).count(), 1, "{events}");
}

#[test]
fn signal_to_the_foreground_process_group_is_handled_once() {
    assert_handled_once("INT", 2, |child| {
        let worker = worker_pid(child);
        let group = Command::new("ps").args(["-o", "pgid=", "-p", &worker]).output().unwrap();
        assert_eq!(
            String::from_utf8(group.stdout).unwrap().trim(),
            worker,
            "not in the foreground"
        );
        kill(&["-INT", "--", &format!("-{}", child.id())]);
    });
}

#[test]
fn signal_to_every_process_is_handled_once() {
    assert_handled_once("TERM", 15, |child| {
        kill(&["-TERM", &child.id().to_string(), &worker_pid(child)])
    });
}

#[test]
fn job_is_stopped_and_continued() {
    let folder = TempDir::new();
    let mut child = spawn(&mut shell_job(&folder, &["-n", "1", "--run-dir", "run"], COUNTING));
    wait_until("the rank to start", || count(&folder) > 0);
    let rank = folder.path().join("pid");
    let rank = std::fs::read_to_string(rank).unwrap();
    let (reaper, worker) = (child.id().to_string(), worker_pid(&child));
    send_signal(&child, TSTP);
    wait_until("the job to stop", || is_stopped(rank.trim()) && process_state(&reaper) == 'T');
    assert_ne!(process_state(&worker), 'T', "the worker keeps running to continue the ranks");
    let stopped_at = count(&folder);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(count(&folder), stopped_at);
    send_signal(&child, CONT);
    wait_until("the rank to continue", || count(&folder) > stopped_at);
    send_signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn stops_and_continues_are_handled_in_order() {
    let folder = TempDir::new();
    let mut child = spawn(&mut shell_job(&folder, &["-n", "1", "--run-dir", "run"], COUNTING));
    wait_until("the rank to start", || count(&folder) > 0);
    for _ in 0..20 {
        send_signal(&child, TSTP);
        send_signal(&child, CONT);
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = count(&folder);
    wait_until("the rank to continue", || count(&folder) > before);
    send_signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn job_under_nohup_survives_hangup() {
    let folder = TempDir::new();
    let script = "echo > up; until [ -e go ]; do sleep 0.05; done";
    let launch = shell_job(&folder, &["-n", "1", "--run-dir", "run"], script);
    let mut nohup = Command::new("nohup");
    support::clean_env(&mut nohup).current_dir(folder.path()).arg(launch.get_program());
    let mut child = spawn(nohup.args(launch.get_args()).process_group(0));
    wait_until("the rank to start", || folder.path().join("up").exists());
    let group = format!("-{}", child.id());
    kill(&["-HUP", "--", &group]);
    kill(&["-HUP", &worker_pid(&child)]);
    std::thread::sleep(Duration::from_millis(200));
    folder.write("go", "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(run_result(&folder, "run").reason, "all ranks exited successfully");
}

#[test]
fn job_on_a_terminal_writes_and_handles_ctrl_c() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: `script` is not installed");
        return;
    }
    let folder = TempDir::new();
    let program = env!("CARGO_BIN_EXE_regatta");
    let rank = folder
        .write("rank", "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done");
    // With tostop, the terminal stops background processes that write to it.
    let line = format!("stty tostop; exec {program} launch -n 1 --run-dir run -- sh {rank}");
    let mut script = Command::new("script");
    script.current_dir(folder.path()).args(["-qec", &line, "typed"]);
    let mut child = spawn(in_foreground(&script).stdin(Stdio::piped()));
    let shown = || std::fs::read_to_string(folder.path().join("typed")).unwrap_or_default();
    wait_until("the log file", || folder.path().join("run/log/rank-0.out").exists());
    wait_until("the rank to start", || rank_log(&folder, "run", 0, "out").contains("ready"));
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    wait_until("the job to exit", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", shown());
    assert!(shown().contains("] ready") && shown().contains("] saved"), "{}", shown());
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 2 (INT)");
}

#[test]
fn concurrent_jobs_get_different_ports_before_any_rank_listens() {
    let folder = TempDir::new();
    let script = "echo $MASTER_PORT; echo > up-$MASTER_PORT; until [ -e go ]; do sleep 0.05; done";
    let runs = ["first", "second", "third"];
    let launch =
        |run: &&str| spawn(&mut shell_job(&folder, &["-n", "1", "--run-dir", run], script));
    let mut children: Vec<KillOnDrop> = runs.iter().map(launch).collect();
    let up = || folder.names().iter().filter(|n| n.starts_with("up-")).count();
    wait_until("three ports", || {
        up() == 3 || children.iter_mut().any(|c| c.try_wait().unwrap().is_some())
    });
    folder.write("go", "");
    children.iter_mut().for_each(|c| assert_eq!(c.wait().unwrap().code(), Some(0)));
    let mut ports: Vec<String> = runs.iter().map(|run| rank_log(&folder, run, 0, "out")).collect();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
}

/// A memory cgroup, removed on drop.
struct MemoryCgroup(PathBuf);

const LIMIT_BYTES: &str = "67108864";

impl MemoryCgroup {
    /// A version 1 or 2 cgroup; `None` if the system does not permit it.
    fn new() -> Option<Self> {
        let name = format!("regatta-test-{}", std::process::id());
        let one = PathBuf::from("/sys/fs/cgroup/memory");
        if one.join("memory.limit_in_bytes").exists() {
            let group = one.join(name);
            std::fs::create_dir(&group).ok()?;
            let group = MemoryCgroup(group);
            // No swap beyond the limit, if swap accounting is on.
            group.limit("memory.limit_in_bytes")?;
            let _ = group.limit("memory.memsw.limit_in_bytes");
            return Some(group);
        }
        let two = PathBuf::from("/sys/fs/cgroup");
        let _ = std::fs::write(two.join("cgroup.subtree_control"), "+memory");
        let group = two.join(name);
        std::fs::create_dir(&group).ok()?;
        let group = MemoryCgroup(group);
        group.limit("memory.max")?;
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }

    fn limit(&self, file: &str) -> Option<()> {
        // Writing to a missing file would try to create it.
        std::fs::OpenOptions::new().write(true).open(self.0.join(file)).ok()?;
        std::fs::write(self.0.join(file), LIMIT_BYTES).ok()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A cgroup stays busy for a moment after its last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn rank_killed_by_the_oom_killer_is_reported() {
    let Some(group) = MemoryCgroup::new() else {
        eprintln!("skipped: cannot create a memory cgroup");
        return;
    };
    let folder = TempDir::new();
    // tail buffers a last line that never ends.
    let script = "if [ $RANK = 1 ]; then exec tail /dev/zero; fi; exec sleep 600";
    let launch = shell_job(&folder, &["-n", "3", "--run-dir", "run"], script);
    let mut shell = Command::new("sh");
    support::clean_env(&mut shell).current_dir(folder.path());
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    shell.args(["-c", &enter, "sh"]).arg(launch.get_program()).args(launch.get_args());
    let run = run_command(&mut shell);
    assert_eq!(run.code, Some(128 + 9), "{run:?}");
    assert!(run.err.contains("rank 1 on") && run.err.contains("out of memory"), "{}", run.err);
    let failure = run_result(&folder, "run").failure.unwrap();
    assert_eq!((failure.rank, failure.exit), (1, RankExit::OutOfMemory));
}
