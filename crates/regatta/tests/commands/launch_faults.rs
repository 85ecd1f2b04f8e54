//! No process outlives a job on this node, whichever process is killed; and signals of terminals.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use libc::{SIGCONT, SIGINT, SIGKILL, SIGTERM, SIGTSTP};
use regatta_model::result::RankExit;
use regatta_testbed::{assert_contains, wait_until};

use crate::support::cgroup::MemoryCgroup;
use crate::support::process::{
    Process, kill, process_state, processes, rank_log, run_command, run_result, shell_job,
    signal_if_alive, wrap,
};
use crate::support::{REGATTA, TempDir, clean_env};

/// A rank with a child in its process group and a daemon in its own session, all of which ignore TERM.
/// Creates a file when all of them run.
const IGNORES_TERM: &str = "trap '' TERM HUP INT; loop='while :; do sleep 1; done'; \
    sh -c \"$loop\" & setsid sh -c \"echo > daemon$RANK; $loop\" >/dev/null 2>&1 & \
    until [ -e daemon$RANK ]; do sleep 0.02; done; echo > up$RANK; eval \"$loop\"";

/// A rank that appends to a file forever.
const COUNTING: &str = "echo $$ > pid; while :; do echo >> count; sleep 0.02; done";

/// Starts a job of one rank with a run folder `run`.
fn spawn_one(folder: &TempDir, script: &str) -> Process {
    Process::spawn(folder, &mut shell_job(folder, "-n 1 --run-dir run", script))
}

/// Runs a command in its own process group, with the default action of INT, like an interactive shell.
fn in_foreground(command: &Command) -> Command {
    let mut wrapped = wrap(command, "env", &[]);
    wrapped.process_group(0);
    wrapped
}

/// The output of `ps` with these arguments, which must be PIDs.
fn ps(words: &str) -> Vec<u32> {
    let output = Command::new("ps").args(words.split(' ')).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim().parse().unwrap()).collect()
}

fn only_child(pid: u32) -> u32 {
    let children = ps(&format!("--ppid {pid} -o pid="));
    assert_eq!(children.len(), 1, "one child: {children:?}");
    children[0]
}

/// The reaper: the child of the original process.
fn reaper_pid(original: &Process) -> u32 {
    only_child(original.pid())
}

/// The worker process: the child of the reaper, and parent of the ranks.
fn worker_pid(original: &Process) -> u32 {
    only_child(reaper_pid(original))
}

/// Whether a shell is stopped, or is in vfork, where it cannot be stopped, with a stopped child.
fn is_stopped(shell: u32) -> bool {
    let children = ps(&format!("--ppid {shell} -o pid="));
    let in_vfork =
        process_state(shell) == 'D' && children.iter().any(|child| process_state(*child) == 'T');
    process_state(shell) == 'T' || in_vfork
}

fn count(folder: &TempDir) -> u64 {
    std::fs::metadata(folder.join("count")).map_or(0, |m| m.len())
}

fn spawn_ignoring_term(folder: &TempDir) -> Process {
    let mut job = shell_job(folder, "-n 2 --run-dir run", IGNORES_TERM);
    let process = Process::spawn(folder, &mut job);
    wait_until("the ranks and their daemons", || folder.exists("up0") && folder.exists("up1"));
    // Original process, reaper, worker, two ranks, two children and two daemons; each may also have a
    // sleep.
    assert!(processes(folder).len() >= 9, "{:?}", processes(folder));
    process
}

#[test]
fn no_process_is_left_when_up_to_two_processes_of_the_launcher_are_killed() {
    type Victims = fn(u32, u32, u32) -> Vec<u32>;
    let cases: [Victims; 6] = [
        |original, _, _| vec![original],
        |_, reaper, _| vec![reaper],
        |original, reaper, _| vec![original, reaper],
        |original, _, worker| vec![original, worker],
        |_, reaper, worker| vec![reaper, worker],
        |_, reaper, worker| vec![worker, reaper],
    ];
    for (number, victims) in cases.into_iter().enumerate() {
        let folder = TempDir::new();
        let job = spawn_ignoring_term(&folder);
        let victims = victims(job.pid(), reaper_pid(&job), worker_pid(&job));
        let pids: Vec<String> = victims.iter().map(u32::to_string).collect();
        kill(&format!("-9 {}", pids.join(" ")));
        job.wait();
        wait_until(&format!("all processes of case {number} to exit"), || {
            processes(&folder).is_empty()
        });
        assert!(!folder.exists("run/result.json"), "no rank is reported as failed");
    }
}

#[test]
fn no_process_is_left_after_pkill() {
    let folder = TempDir::new();
    // In a PID namespace, where no other job runs. In the end only its init and the three processes
    // that count are left.
    let script = "\"$@\" & until [ -e up0 ] && [ -e up1 ]; do sleep 0.02; done; pkill -9 regatta; \
                  until [ $(ls -d /proc/[0-9]* | wc -l) -le 4 ]; do sleep 0.05; done; echo gone";
    let launch = shell_job(&folder, "-n 2 --run-dir run", IGNORES_TERM);
    let unshare = ["-rpf", "--mount-proc", "sh", "-c", script, "sh"];
    if !Command::new("unshare").args(&unshare[..2]).arg("true").status().unwrap().success() {
        return eprintln!("skipped: PID namespaces are not permitted");
    }
    let job = Process::spawn(&folder, &mut wrap(&launch, "unshare", &unshare));
    wait_until("all processes to exit", || job.stdout().contains("gone"));
    job.wait().assert_code(0);
}

#[test]
fn hung_worker_is_killed_with_its_ranks() {
    let folder = TempDir::new();
    let options = "-n 2 --run-dir run --heartbeat-timeout 2";
    let mut job = Process::spawn(&folder, &mut shell_job(&folder, options, IGNORES_TERM));
    wait_until("the ranks and their daemons", || folder.exists("up0") && folder.exists("up1"));
    kill(&format!("-STOP {}", worker_pid(&job)));
    wait_until("the end of the job", || job.has_exited());
    let ended = job.wait().assert_code(128 + SIGKILL);
    assert_contains(&ended.err, "did not respond for 2 s (--heartbeat-timeout)");
    assert_eq!(processes(&folder), [], "the original process exits last");
}

#[test]
fn job_ends_while_its_reaper_and_original_process_are_stopped() {
    let folder = TempDir::new();
    let mut job = spawn_one(&folder, ": > up; until [ -e go ]; do sleep 0.1; done");
    wait_until("the rank", || folder.exists("up"));
    kill(&format!("-STOP {} {}", reaper_pid(&job), job.pid()));
    std::fs::write(folder.join("go"), "").unwrap();
    wait_until("the end of the job", || job.has_exited());
    job.wait().assert_code(0);
}

#[test]
fn suspended_job_and_blocked_terminal_are_not_hangs() {
    let folder = TempDir::new();
    // Longer than the heartbeat timeout.
    const STALL: Duration = Duration::from_millis(1500);
    let options = "-n 1 --run-dir run --heartbeat-timeout 1";
    let mut job = shell_job(&folder, options, "echo $$ > pid; exec yes");
    // A pipe that is not read.
    let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
    let log = folder.join("run/log/rank-0.out");
    wait_until("enough output", || std::fs::metadata(&log).is_ok_and(|m| m.len() > 100_000));
    let all: Vec<String> = processes(&folder).iter().map(|(pid, _)| pid.to_string()).collect();
    kill(&format!("-STOP {}", all.join(" ")));
    std::thread::sleep(STALL);
    kill(&format!("-CONT {}", all.join(" ")));
    std::thread::sleep(STALL);
    assert!(child.try_wait().unwrap().is_none(), "the job still runs");
    kill(&format!("-TERM {}", child.id()));
    wait_until("the job to exit", || child.try_wait().unwrap().is_some());
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 15 (TERM)");
}

#[test]
fn no_process_is_left_when_the_worker_is_killed() {
    let folder = TempDir::new();
    let job = spawn_ignoring_term(&folder);
    kill(&format!("-9 {}", worker_pid(&job)));
    job.wait().assert_code(128 + SIGKILL);
    assert_eq!(processes(&folder), [], "the reaper exits last");
}

#[test]
fn no_process_is_left_when_the_job_is_terminated() {
    let folder = TempDir::new();
    let job = spawn_ignoring_term(&folder);
    job.signal(SIGTERM);
    let is_sent = || folder.read("run/events.jsonl").contains("\"signal-sent\"");
    wait_until("the signal to arrive", is_sent);
    // A second one within a second would count as a duplicate.
    std::thread::sleep(Duration::from_millis(1100));
    job.signal(SIGTERM);
    let code = job.wait().code;
    assert_eq!(code, Some(128 + SIGTERM), "{:?}", run_result(&folder, "run"));
    assert_eq!(processes(&folder), []);
}

/// Asserts that a signal sent by `send` is handled once: a second one would kill the rank.
fn assert_handled_once(name: &str, number: i32, send: impl Fn(&Process)) {
    let folder = TempDir::new();
    let script =
        format!("trap 'echo noted' {name}; echo > up; until [ -e go ]; do sleep 0.05; done");
    let launch = shell_job(&folder, "-n 1 --run-dir run", &script);
    let job = Process::spawn(&folder, &mut in_foreground(&launch));
    wait_until("the rank to start", || folder.exists("up"));
    send(&job);
    wait_until("the signal to arrive", || rank_log(&folder, "run", 0, "out").contains("noted"));
    // Time for a duplicate to arrive.
    std::thread::sleep(Duration::from_millis(300));
    folder.write("go", "");
    job.wait().assert_code(0);
    let events = folder.read("run/events.jsonl");
    let event = format!("\"signal-received\",\"signal\":{number}");
    assert_eq!(events.matches(&event).count(), 1, "{events}");
}

#[test]
fn duplicate_signals_leave_the_rank_time_to_save() {
    let folder = TempDir::new();
    let script =
        "trap 'sleep 0.5; echo saved; exit 0' TERM; echo > up; while :; do sleep 0.05; done";
    // `timeout` signals its child, and then the process group of both.
    let launch = shell_job(&folder, "-n 1 --run-dir run", script);
    let mut timeout = wrap(&launch, "timeout", &["--preserve-status", "-s", "TERM", "600"]);
    let job = Process::spawn(&folder, timeout.process_group(0));
    wait_until("the rank to start", || folder.exists("up"));
    let launcher = only_child(job.pid());
    job.signal(SIGTERM);
    // The kernel may have merged the first two.
    std::thread::sleep(Duration::from_millis(20));
    signal_if_alive(launcher, SIGTERM);
    job.wait().assert_code(0);
    assert_eq!(rank_log(&folder, "run", 0, "out"), "saved\n");
}

#[test]
fn signal_to_the_foreground_process_group_is_handled_once() {
    assert_handled_once("INT", SIGINT, |job| {
        let worker = worker_pid(job);
        assert_eq!(ps(&format!("-o pgid= -p {worker}")), [worker], "not in the foreground");
        kill(&format!("-INT -- -{}", job.pid()));
    });
}

#[test]
fn signal_to_every_process_is_handled_once() {
    assert_handled_once("TERM", SIGTERM, |job| {
        kill(&format!("-TERM {} {}", job.pid(), worker_pid(job)));
    });
}

#[test]
fn job_is_stopped_and_continued() {
    let folder = TempDir::new();
    let job = spawn_one(&folder, COUNTING);
    wait_until("the rank to start", || count(&folder) > 0);
    let rank = folder.read("pid").trim().parse().unwrap();
    let worker = worker_pid(&job);
    job.signal(SIGTSTP);
    wait_until("the job to stop", || is_stopped(rank) && process_state(job.pid()) == 'T');
    assert_ne!(process_state(worker), 'T', "the worker keeps running to continue the ranks");
    let stopped_at = count(&folder);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(count(&folder), stopped_at);
    job.signal(SIGCONT);
    wait_until("the rank to continue", || count(&folder) > stopped_at);
    job.signal(SIGTERM);
    job.wait().assert_code(128 + SIGTERM);
}

#[test]
fn stops_and_continues_are_handled_in_order() {
    let folder = TempDir::new();
    let job = spawn_one(&folder, COUNTING);
    wait_until("the rank to start", || count(&folder) > 0);
    for _ in 0..20 {
        job.signal(SIGTSTP);
        job.signal(SIGCONT);
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = count(&folder);
    wait_until("the rank to continue", || count(&folder) > before);
    job.signal(SIGTERM);
    job.wait().assert_code(128 + SIGTERM);
}

#[test]
fn job_under_nohup_survives_hangup() {
    let folder = TempDir::new();
    let script = "echo > up; until [ -e go ]; do sleep 0.05; done";
    let mut nohup = wrap(&shell_job(&folder, "-n 1 --run-dir run", script), "nohup", &[]);
    let job = Process::spawn(&folder, nohup.process_group(0));
    wait_until("the rank to start", || folder.exists("up"));
    kill(&format!("-HUP -- -{}", job.pid()));
    kill(&format!("-HUP {}", worker_pid(&job)));
    std::thread::sleep(Duration::from_millis(200));
    folder.write("go", "");
    job.wait().assert_code(0);
    assert_eq!(run_result(&folder, "run").reason, "all ranks exited successfully");
}

#[test]
fn job_on_a_terminal_writes_and_handles_ctrl_c() {
    if Command::new("script").arg("--version").output().is_err() {
        return eprintln!("skipped: `script` is not installed");
    }
    let folder = TempDir::new();
    let rank = "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done";
    let rank = folder.write("rank", rank);
    // With tostop, the terminal stops background processes that write to it.
    let line = format!("stty tostop; exec {REGATTA} launch -n 1 --run-dir run -- sh {rank}");
    let mut script = clean_env(Command::new("script"));
    script.current_dir(folder.path()).args(["-qec", &line, "typed"]);
    let mut job = Process::spawn(&folder, in_foreground(&script).stdin(Stdio::piped()));
    wait_until("the log file", || folder.exists("run/log/rank-0.out"));
    wait_until("the rank to start", || rank_log(&folder, "run", 0, "out").contains("ready"));
    job.child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    wait_until("the job to exit", || job.has_exited());
    let code = job.wait().code;
    let shown = folder.read("typed");
    assert_eq!(code, Some(0), "{shown}");
    assert_contains(shown, ["] ready", "] saved"]);
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 2 (INT)");
}

#[test]
fn concurrent_jobs_get_different_ports_before_any_rank_listens() {
    let folder = TempDir::new();
    let script = "echo $MASTER_PORT; echo > up-$MASTER_PORT; until [ -e go ]; do sleep 0.05; done";
    let runs = ["first", "second", "third"];
    let mut jobs = runs.map(|run| {
        Process::spawn(&folder, &mut shell_job(&folder, &format!("-n 1 --run-dir {run}"), script))
    });
    let up = || folder.names().iter().filter(|n| n.starts_with("up-")).count();
    wait_until("three ports", || up() == 3 || jobs.iter_mut().any(Process::has_exited));
    folder.write("go", "");
    jobs.into_iter().for_each(|job| drop(job.wait().assert_code(0)));
    let mut ports = runs.map(|run| rank_log(&folder, run, 0, "out")).to_vec();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
}

#[test]
fn rank_killed_by_the_oom_killer_is_reported() {
    let Some(group) = MemoryCgroup::or_skip("oom", 64 << 20) else { return };
    let folder = TempDir::new();
    // tail buffers a last line that never ends.
    let script = "if [ $RANK = 1 ]; then exec tail /dev/zero; fi; exec sleep 600";
    let launch = shell_job(&folder, "-n 3 --run-dir run", script);
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let run = run_command(&mut wrap(&launch, "sh", &["-c", &enter, "sh"]));
    run.assert_code(128 + SIGKILL).assert_stderr(["rank 1 on", "out of memory"]);
    let failure = run_result(&folder, "run").failure.unwrap();
    assert_eq!((failure.rank, failure.exit), (1, RankExit::OutOfMemory));
}
