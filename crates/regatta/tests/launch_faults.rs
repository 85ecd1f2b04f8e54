//! Nothing outlives a job on this machine, whatever is killed; and what a terminal does to it.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regatta_model::result::Ending;
use support::Folder;
use support::job::{ended, job, log, result, signal, until};

/// A rank with a helper in its process group and a daemon in a session of its own, none of which
/// listens to TERM. It says when all of them run.
const STUBBORN: &str = "trap '' TERM HUP INT; loop='while :; do sleep 1; done'; \
    sh -c \"$loop\" & setsid sh -c \"echo > daemon$RANK; $loop\" >/dev/null 2>&1 & \
    until [ -e daemon$RANK ]; do sleep 0.02; done; echo > up$RANK; eval \"$loop\"";

/// A rank that counts on, in a file of its own.
const COUNTING: &str = "echo $$ > pid; while :; do echo >> count; sleep 0.02; done";

const TSTP: i32 = 20;
const CONT: i32 = 18;

/// A process that does not outlive a test which failed.
struct Started(Child);

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a job whose words on the terminal nobody wants.
fn start(job: &mut Command) -> Started {
    Started(job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// A job that gets INT even if whoever tests ignores it, in a process group as a shell makes one.
fn in_foreground(job: &Command) -> Command {
    let mut env = Command::new("env");
    support::clean(&mut env).arg("--default-signal=INT").arg(job.get_program());
    env.args(job.get_args()).current_dir(job.get_current_dir().unwrap()).process_group(0);
    env
}

fn kill(words: &[&str]) {
    assert!(Command::new("kill").args(words).status().unwrap().success(), "kill {words:?}");
}

/// The process below the one that was started, which has the ranks.
fn worker(started: &Child) -> String {
    let pid = started.id().to_string();
    let output = Command::new("ps").args(["--ppid", &pid, "-o", "pid="]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one worker: {text}");
    text.trim().to_owned()
}

/// Every process that works in the folder: a job's own, and whatever it started.
fn left(folder: &Folder) -> Vec<String> {
    let here = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.path())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.parse::<u32>().is_ok()).filter(here).collect()
}

fn state(pid: &str) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()).unwrap_or('-')
}

/// Whether a shell is stopped: itself, or what is about to become its `sleep`: for that it waits, and
/// until then it cannot be stopped itself.
fn is_stopped(shell: &str) -> bool {
    let children = Command::new("ps").args(["--ppid", shell, "-o", "pid="]).output().unwrap();
    let children = String::from_utf8(children.stdout).unwrap();
    let waits = state(shell) == 'D' && children.lines().any(|child| state(child.trim()) == 'T');
    state(shell) == 'T' || waits
}

fn count(folder: &Folder) -> u64 {
    std::fs::metadata(folder.path().join("count")).map_or(0, |m| m.len())
}

fn stubborn(folder: &Folder) -> Started {
    let child = start(&mut job(folder, &["-n", "2", "--run-dir", "run"], STUBBORN));
    let up = |rank: u32| folder.path().join(format!("up{rank}")).exists();
    until("the ranks and their daemons", || up(0) && up(1));
    // Two ranks, two helpers, two daemons and us; each may have a sleep.
    assert!(left(folder).len() >= 8, "{:?}", left(folder));
    child
}

#[test]
fn nothing_is_left_when_the_process_that_was_started_is_killed() {
    let folder = Folder::new();
    let mut child = stubborn(&folder);
    signal(&child, 9);
    child.wait().unwrap();
    until("the end of everything", || left(&folder).is_empty());
    assert!(!folder.path().join("run/result.json").exists(), "no rank is blamed");
}

#[test]
fn nothing_is_left_when_the_worker_is_killed() {
    let folder = Folder::new();
    let mut child = stubborn(&folder);
    kill(&["-9", &worker(&child)]);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    assert_eq!(left(&folder), [""; 0], "it ends as the last of all");
}

#[test]
fn nothing_is_left_when_the_job_is_ended() {
    let folder = Folder::new();
    let mut child = stubborn(&folder);
    signal(&child, 15);
    let events = folder.path().join("run/events.jsonl");
    until("the signal", || std::fs::read_to_string(&events).unwrap().contains("\"told\""));
    signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "{:?}", result(&folder, "run"));
    assert_eq!(left(&folder), [""; 0]);
}

/// A rank that notes a signal, and goes on until it may end.
fn noting(signal: &str) -> String {
    format!("trap 'echo noted' {signal}; echo > up; until [ -e go ]; do sleep 0.05; done")
}

/// Has a job of one rank get a signal by `send`, and asserts that it came once: a second one kills.
fn comes_once(name: &str, number: i32, send: impl Fn(&Child)) {
    let folder = Folder::new();
    let launch = job(&folder, &["-n", "1", "--run-dir", "run"], &noting(name));
    let mut child = start(&mut in_foreground(&launch));
    until("the rank", || folder.path().join("up").exists());
    send(&child);
    until("the signal", || log(&folder, "run", 0, "out").contains("noted"));
    // Until an echo would have been taken.
    std::thread::sleep(Duration::from_millis(300));
    folder.write("go", "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let events = std::fs::read_to_string(folder.path().join("run/events.jsonl")).unwrap();
    let came = format!("\"signal\",\"signal\":{number}");
    assert_eq!(events.matches(&came).count(), 1, "{events}");
}

#[test]
fn a_signal_to_the_foreground_comes_once() {
    comes_once("INT", 2, |child| {
        let worker = worker(child);
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
fn a_signal_to_every_process_comes_once() {
    comes_once("TERM", 15, |child| kill(&["-TERM", &child.id().to_string(), &worker(child)]));
}

#[test]
fn a_job_is_stopped_and_continued() {
    let folder = Folder::new();
    let mut child = start(&mut job(&folder, &["-n", "1", "--run-dir", "run"], COUNTING));
    until("the rank", || count(&folder) > 0);
    let rank = folder.path().join("pid");
    let rank = std::fs::read_to_string(rank).unwrap();
    let (warden, worker) = (child.id().to_string(), worker(&child));
    signal(&child, TSTP);
    until("the stop", || is_stopped(rank.trim()) && state(&warden) == 'T');
    assert_ne!(state(&worker), 'T', "the worker goes on: it has to continue the ranks");
    let stopped_at = count(&folder);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(count(&folder), stopped_at);
    signal(&child, CONT);
    until("the rank to go on", || count(&folder) > stopped_at);
    signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn stops_and_continuations_are_taken_in_their_order() {
    let folder = Folder::new();
    let mut child = start(&mut job(&folder, &["-n", "1", "--run-dir", "run"], COUNTING));
    until("the rank", || count(&folder) > 0);
    for _ in 0..20 {
        signal(&child, TSTP);
        signal(&child, CONT);
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = count(&folder);
    until("the rank to go on", || count(&folder) > before);
    signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_job_under_nohup_outlives_the_terminal() {
    let folder = Folder::new();
    let script = "echo > up; until [ -e go ]; do sleep 0.05; done";
    let launch = job(&folder, &["-n", "1", "--run-dir", "run"], script);
    let mut nohup = Command::new("nohup");
    support::clean(&mut nohup).current_dir(folder.path()).arg(launch.get_program());
    let mut child = start(nohup.args(launch.get_args()).process_group(0));
    until("the rank", || folder.path().join("up").exists());
    let group = format!("-{}", child.id());
    kill(&["-HUP", "--", &group]);
    kill(&["-HUP", &worker(&child)]);
    std::thread::sleep(Duration::from_millis(200));
    folder.write("go", "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(result(&folder, "run").reason, "all ranks ended well");
}

#[test]
fn a_job_at_a_terminal_writes_and_hears_ctrl_c() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no `script` to make a terminal");
        return;
    }
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_regatta");
    let rank = folder
        .write("rank", "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done");
    // With tostop the terminal stops whoever writes to it from the background.
    let line = format!("stty tostop; exec {program} launch -n 1 --run-dir run -- sh {rank}");
    let mut script = Command::new("script");
    script.current_dir(folder.path()).args(["-qec", &line, "typed"]);
    let mut child = start(in_foreground(&script).stdin(Stdio::piped()));
    let shown = || std::fs::read_to_string(folder.path().join("typed")).unwrap_or_default();
    until("what the rank writes", || folder.path().join("run/log/rank-0.out").exists());
    until("the rank", || log(&folder, "run", 0, "out").contains("ready"));
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    until("its end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", shown());
    assert!(shown().contains("] ready") && shown().contains("] saved"), "{}", shown());
    assert_eq!(result(&folder, "run").reason, "ended by signal 2 (INT)");
}

#[test]
fn jobs_side_by_side_get_ports_of_their_own_before_anybody_listens() {
    let folder = Folder::new();
    let script = "echo $MASTER_PORT; echo > up-$MASTER_PORT; until [ -e go ]; do sleep 0.05; done";
    let runs = ["first", "second", "third"];
    let launch = |run: &&str| start(&mut job(&folder, &["-n", "1", "--run-dir", run], script));
    let mut children: Vec<Started> = runs.iter().map(launch).collect();
    let up = || folder.names().iter().filter(|n| n.starts_with("up-")).count();
    until("three ports", || {
        up() == 3 || children.iter_mut().any(|c| c.try_wait().unwrap().is_some())
    });
    folder.write("go", "");
    children.iter_mut().for_each(|c| assert_eq!(c.wait().unwrap().code(), Some(0)));
    let mut ports: Vec<String> = runs.iter().map(|run| log(&folder, run, 0, "out")).collect();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
}

/// A memory cgroup of the test's own, removed when it goes out of scope.
struct MemoryGroup(PathBuf);

const MEMORY: &str = "67108864";

impl MemoryGroup {
    /// A group of either version, if this machine lets us make one.
    fn new() -> Option<Self> {
        let name = format!("regatta-test-{}", std::process::id());
        let one = PathBuf::from("/sys/fs/cgroup/memory");
        if one.join("memory.limit_in_bytes").exists() {
            let group = one.join(name);
            std::fs::create_dir(&group).ok()?;
            let group = MemoryGroup(group);
            // Where swap is counted, it is not to help.
            group.limit("memory.limit_in_bytes")?;
            let _ = group.limit("memory.memsw.limit_in_bytes");
            return Some(group);
        }
        let two = PathBuf::from("/sys/fs/cgroup");
        let _ = std::fs::write(two.join("cgroup.subtree_control"), "+memory");
        let group = two.join(name);
        std::fs::create_dir(&group).ok()?;
        let group = MemoryGroup(group);
        group.limit("memory.max")?;
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }

    fn limit(&self, file: &str) -> Option<()> {
        // Writing to a file that is not there would try to make one.
        std::fs::OpenOptions::new().write(true).open(self.0.join(file)).ok()?;
        std::fs::write(self.0.join(file), MEMORY).ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group stays busy for a moment after its last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_rank_that_runs_out_of_memory_is_named() {
    let Some(group) = MemoryGroup::new() else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    let folder = Folder::new();
    // tail keeps a last line that never ends.
    let script = "if [ $RANK = 1 ]; then exec tail /dev/zero; fi; exec sleep 600";
    let launch = job(&folder, &["-n", "3", "--run-dir", "run"], script);
    let mut shell = Command::new("sh");
    support::clean(&mut shell).current_dir(folder.path());
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    shell.args(["-c", &enter, "sh"]).arg(launch.get_program()).args(launch.get_args());
    let run = ended(&mut shell);
    assert_eq!(run.code, Some(128 + 9), "{run:?}");
    assert!(run.err.contains("rank 1 on") && run.err.contains("out of memory"), "{}", run.err);
    let failure = result(&folder, "run").failure.unwrap();
    assert_eq!((failure.rank, failure.ending), (1, Ending::OutOfMemory));
}
