//! The output of jobs in pipes, files and terminals.

use std::fs::OpenOptions;
use std::process::Stdio;
use std::time::Duration;

use libc::SIGTERM;
use regatta_testbed::{assert_contains, poll_until, wait_until};

use crate::support;
use crate::support::process::{Process, rank_log, run_command, run_job, run_result, shell_job};
use crate::support::train::tiny_run;
use crate::support::{CommandOutput, TempDir, command, pty};

/// Longer than the time after which lines for a blocked terminal are dropped.
const STALL: Duration = Duration::from_millis(2200);

#[test]
fn slow_reader_of_a_pipe_gets_every_line() {
    const LINES: usize = 200_000;
    let folder = TempDir::new();
    // The rank is blocked in a write for longer than the hang timeout.
    let options = "-n 1 --run-dir run --hang-timeout 2";
    let mut job = shell_job(&folder, options, &format!("seq {LINES}; echo done > done"));
    let child = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = folder.join("run/log/rank-0.out");
    let (mut logged, interval) = (0, Duration::from_millis(200));
    poll_until(interval, "the rank to be blocked", || {
        let now = std::fs::metadata(&log).map_or(0, |file| file.len());
        std::mem::replace(&mut logged, now) == now && now > 0
    });
    std::thread::sleep(STALL);
    assert!(!folder.exists("done"), "backpressure blocks the rank");
    let run = CommandOutput::from(child.wait_with_output().unwrap()).assert_code(0);
    assert_eq!(run.out.lines().count(), LINES);
    let numbers = run.out.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    assert!(numbers.zip(1..).all(|(text, number)| text == i32::to_string(&number)));
}

#[test]
fn signal_ends_the_wait_for_a_blocked_reader() {
    let folder = TempDir::new();
    // Less than the queue holds, and more than the pipe: the rank exits.
    let mut job = shell_job(&folder, "-n 1 --run-dir run", "seq 20000");
    let mut child = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the exit of the rank", || {
        folder.exists("run/events.jsonl") && folder.read("run/events.jsonl").contains("\"exited\"")
    });
    std::thread::sleep(STALL);
    assert!(child.try_wait().unwrap().is_none(), "the launcher waits for the reader");
    support::process::kill(&format!("-TERM {}", child.id()));
    wait_until("the launcher to exit", || child.try_wait().unwrap().is_some());
    let run = CommandOutput::from(child.wait_with_output().unwrap()).assert_code(1);
    assert_contains(run.err, "not shown because the reader was blocked; the logs are complete");
    assert_eq!(rank_log(&folder, "run", 0, "out").lines().count(), 20_000);
}

#[test]
fn full_disk_of_standard_output_fails_the_job_after_its_end() {
    let folder = TempDir::new();
    let script = "echo first; sleep 0.5; echo last; echo > done";
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut job = shell_job(&folder, "-n 1 --run-dir run", script);
    let child = job.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let run = CommandOutput::from(child.wait_with_output().unwrap()).assert_code(1);
    assert_contains(run.err, "error: standard output is incomplete: No space left on device");
    assert!(folder.exists("done"), "the rank runs to its end");
    assert_eq!(rank_log(&folder, "run", 0, "out"), "first\nlast\n");
    assert_eq!(run_result(&folder, "run").exit_code, 0);
}

#[test]
fn closed_pipe_is_not_an_error() {
    let folder = TempDir::new();
    let script = "until [ -e closed ]; do sleep 0.05; done; echo a; sleep 0.3; echo b; echo > done";
    let mut job = shell_job(&folder, "-n 1 --run-dir run", script);
    let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    folder.write("closed", "");
    assert!(child.wait().unwrap().success());
    assert!(folder.exists("done"));
}

#[test]
fn terminal_shows_colours_but_no_other_escape_sequences() {
    let folder = TempDir::new();
    let hostile = "\\033]52;c;aGk=\\007\\033]0;title\\007\\033[2J\\033[31mred\\033[0m\\tend";
    let script = format!("printf '{hostile}\\n'; printf '10%%\\r\\033[K100%%\\n'; exit 3");
    let job = shell_job(&folder, "-n 1 --run-dir run", &script);
    let (shown, status) = pty::output(pty::spawn_on_pty(job, &[]));
    assert_eq!(status.code(), Some(3), "{shown}");
    assert_contains(&shown, ["\x1b[31mred\x1b[0m\tend", "100%"]);
    for sequence in ["\x1b]", "\x07", "\x1b[2J", "\x1b[K"] {
        assert!(!shown.contains(sequence), "{sequence:?} in {shown:?}");
    }
    assert!(shown.matches("red").count() == 2, "in the output and in the failure report: {shown}");
    assert_contains(rank_log(&folder, "run", 0, "out"), ["\x1b]52;c;aGk=\x07", "\x1b[2J"]);
}

#[test]
fn generated_text_is_sanitized_for_a_terminal_only() {
    let folder = TempDir::new();
    folder.write("text", "abc\x1b]0;d\x07\n".repeat(200));
    tiny_run(&folder, "run", "train.steps=1 source=text -n 1");
    let generate = || {
        let mut generate = command();
        generate.current_dir(folder.path()).args(["generate", "run", "-n", "0", "-p"]);
        generate.arg("a\x1b]0;d\x07c");
        generate
    };
    assert_eq!(run_command(&mut generate()).ok(), "a\x1b]0;d\x07c\n");
    let (shown, _) = pty::output(pty::spawn_on_pty(generate(), &[]));
    assert!(shown.starts_with("ac\r\n"), "{shown:?}");
}

#[test]
fn line_without_end_is_shown_in_pieces_and_logged_unchanged() {
    const LEN: usize = 300_000;
    let folder = TempDir::new();
    let script = format!("head -c {LEN} /dev/zero | tr '\\0' x");
    let run = run_job(&folder, "-n 1 --run-dir run", &script).assert_code(0);
    assert_eq!(run.out.matches('x').count(), LEN);
    assert!(run.out.lines().all(|line| line.len() < 66_000));
    assert_eq!(rank_log(&folder, "run", 0, "out").len(), LEN);
}

#[test]
fn errors_of_a_users_program_are_shown_at_once_and_in_the_report() {
    let folder = TempDir::new();
    let run = run_job(&folder, "-n 1 --run-dir run", "echo error: x >&2; exit 3").assert_code(3);
    assert_contains(&run.err, [" 0] error: x\n", "\n  | error: x\n"]);
}

#[test]
fn merged_line_is_shown_as_that_of_the_selected_rank() {
    // All ranks write the line at the same time, so that it is merged.
    let script = "until [ -e go ]; do sleep 0.01; done; echo hello";
    let folder = TempDir::new();
    let options = "-n 4 --rank 0 --run-dir run --tee shown";
    let job = Process::spawn(&folder, &mut shell_job(&folder, options, script));
    folder.write("go", "");
    let run = job.wait().assert_code(0);
    assert!(run.out.ends_with(" 0] hello\n") && run.out.lines().count() == 1, "{run:?}");
    assert_eq!(folder.read("shown"), run.out);
}

#[test]
fn start_and_termination_are_announced_on_stderr() {
    let folder = TempDir::new();
    let script = "trap 'exit 0' TERM; echo > up$RANK; while :; do sleep 0.05; done";
    let job = Process::spawn(&folder, &mut shell_job(&folder, "-n 2 --run-dir run", script));
    wait_until("the ranks to start", || folder.exists("up0") && folder.exists("up1"));
    job.signal(SIGTERM);
    let run = job.wait().assert_code(0);
    assert_contains(&run.err, ["launching 2 ranks on ", "; run folder: run\n"]);
    let notice = "SIGTERM: forwarded to 2 ranks, waiting up to 30 s for them to exit; \
                  a second signal kills them\n";
    assert_contains(&run.err, notice);
    assert_eq!(run.out, "");
}

#[test]
fn failure_of_a_restart_names_its_log_folder() {
    let folder = TempDir::new();
    let run = run_job(&folder, "-n 1 --run-dir run --max-restarts 1", "exit 4").assert_code(4);
    let logs = run.err.lines().filter_map(|line| line.trim().strip_prefix("logs: "));
    assert_eq!(logs.collect::<Vec<_>>(), ["run/log", "run/log/restart-1"]);
}

#[test]
fn first_word_that_is_not_an_option_starts_the_command() {
    let folder = TempDir::new();
    let launch = |words: &str| {
        let words = shlex::split(words).unwrap();
        run_command(command().current_dir(folder.path()).arg("launch").args(words))
    };
    launch("-n 1 --run-dir a printf %s, -n --rank -- 7").assert_code(0);
    assert_eq!(rank_log(&folder, "a", 0, "out"), "-n,--rank,--,7,");
    launch("-n 1 --run-dir b -- printf %s, -n").assert_code(0);
    assert_eq!(rank_log(&folder, "b", 0, "out"), "-n,");
    launch("--max-restart 1 true").assert_usage_error("'--max-restart'");
    launch("-n 1").assert_usage_error("required arguments were not provided");
    launch("--help").assert_ok("options after that word belong to the command");
}

#[test]
fn options_of_torchrun_are_accepted() {
    let folder = TempDir::new();
    for option in ["--ranks-per-node", "--nproc-per-node", "--nproc_per_node"] {
        let words = ["launch", "--dry-run", "--system", "lumi-g", option, "2", "true"];
        run_command(command().args(words)).assert_ok("WORLD_SIZE=2");
    }
    let mut job = shell_job(&folder, "--standalone -n 2 --run-dir run", "echo $WORLD_SIZE");
    job.env("SLURM_JOB_ID", "5").env("SLURM_JOB_NODELIST", "away[1-4]");
    run_command(job.env("SLURM_JOB_NUM_NODES", "4")).assert_code(0);
    assert_eq!(rank_log(&folder, "run", 1, "out"), "2\n", "on this machine only");
    for conflicting in ["-N 2", "--hostfile hosts", "--spares 1", "--launcher ssh"] {
        let words = format!("launch --standalone {conflicting} true");
        run_command(command().args(words.split(' '))).assert_usage_error("cannot be used with");
    }
}
