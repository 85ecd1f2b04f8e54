//! Jobs on this node: launch, supervision, signals, restarts.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::{SIGHUP, SIGKILL, SIGSEGV, SIGTERM, SIGUSR1};
use regatta_model::result::RankExit;
use regatta_model::{CpuSet, Placement, document};
use regatta_testbed::{assert_contains, assert_within, wait_until};

use crate::support::process::{
    Process, is_alive, kill, rank_log, run_command, run_job, run_result, shell_job, wrap,
};
use crate::support::seccomp;
use crate::support::{CommandOutput, REGATTA, TempDir, command};

/// `regatta launch` with these arguments.
fn launch(folder: &TempDir, words: &str) -> CommandOutput {
    let words = shlex::split(words).unwrap();
    let mut launch = command();
    launch.env("TMPDIR", folder.path()).current_dir(folder.path());
    run_command(launch.arg("launch").args(words))
}

#[test]
fn ranks_are_bound_as_planned_and_share_a_rendezvous() {
    let folder = TempDir::new();
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; \
                  grep Cpus_allowed_list /proc/self/status";
    run_job(&folder, "-n 3 --run-dir run", script).assert_code(0);
    let placement: Placement = document::from_json(&folder.read("run/placement.json")).unwrap();
    let mut ports = HashSet::new();
    for rank in 0..3 {
        let text = rank_log(&folder, "run", rank, "out");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..5], [&rank.to_string(), "3", &rank.to_string(), "3", "127.0.0.1"]);
        ports.insert(words[5].to_owned());
        let planned = placement.find_rank(rank).unwrap().2.cpus.to_string();
        assert_eq!(words[7], planned, "rank {rank} is bound as planned");
    }
    assert_eq!(ports.len(), 1);
    let result = run_result(&folder, "run");
    assert_eq!((result.exit_code, result.ranks, result.rank_exits.len()), (0, 3, 3));
    for file in ["machine.json", "environment.json", "events.jsonl"] {
        assert!(folder.join("run").join(file).exists(), "{file}");
    }
}

#[test]
fn ranks_run_unbound_where_the_system_refuses_binding() {
    let refused = |words: &str, error| {
        let folder = TempDir::new();
        let mut job = shell_job(&folder, words, "echo rank $RANK");
        seccomp::refuse(
            &mut job,
            &[(libc::SYS_sched_setaffinity, error), (libc::SYS_set_mempolicy, error)],
        );
        run_command(&mut job)
    };
    for (error, text) in [(libc::ENOSYS, "Function not"), (libc::EPERM, "Operation not permitted")]
    {
        let run = refused("-n 2", error).assert_code(0);
        assert_contains(&run.out, ["rank 0", "rank 1"]);
        let note = "note: ranks run without binding to their CPUs";
        assert_eq!(run.err.matches(note).count(), 1, "{}", run.err);
        assert_contains(&run.err, [format!("sched_setaffinity: {text}").as_str()]);
    }
    // The user asked for memory of these nodes only. Without NUMA in the kernel, there are none.
    if Path::new("/sys/devices/system/node/node0").exists() {
        let run = refused("-n 1 --memory bind", libc::EPERM).assert_code(127);
        assert_contains(&run.err, ["set_mempolicy", "use --memory prefer"]);
    }
}

#[test]
fn command_is_executed_without_a_shell() {
    let folder = TempDir::new();
    let words = "--run-dir run -n 1 -- printf %s| 'a b' '$HOME' '*' '; reboot' \"'\"";
    let run = launch(&folder, words).assert_code(0);
    assert_eq!(rank_log(&folder, "run", 0, "out"), "a b|$HOME|*|; reboot|'|");
    assert!(run.out.contains("a b|$HOME|*|; reboot|'|"), "a last line without a newline is shown");
}

#[test]
fn first_failure_is_reported() {
    let folder = TempDir::new();
    let script = "if [ $RANK = 2 ]; then echo one; echo two >&2; exit 7; fi; exec sleep 600";
    let run = run_job(&folder, "-n 3 --run-dir run", script).assert_code(7);
    assert_contains(&run.err, ["rank 2 on", "exit code 7", "| two", "run/log"]);
    let result = run_result(&folder, "run");
    let failure = result.failure.unwrap();
    assert_eq!((failure.rank, failure.exit), (2, RankExit::Exit(7)));
    assert_eq!(failure.other_ranks.len(), 2, "the states of the other ranks are reported");
    assert_eq!(result.rank_exits[&0], RankExit::Signal(SIGTERM));
}

#[test]
fn fatal_signal_of_a_rank_is_named() {
    let run = run_job(&TempDir::new(), "-n 1", "kill -SEGV $$");
    run.assert_code(128 + SIGSEGV).assert_stderr("signal 11 (SEGV");
}

#[test]
fn ranks_that_ignore_sigterm_are_killed_with_their_descendants() {
    let folder = TempDir::new();
    // A grandchild in its own session, outside the rank's process group.
    let script = "trap '' TERM; setsid sh -c 'echo $$ > pid; exec sleep 600' & \
                  until [ -s pid ]; do sleep 0.1; done; \
                  if [ $RANK = 0 ]; then exit 3; fi; while :; do sleep 1; done";
    run_job(&folder, "-n 2 --grace 1", script).assert_code(3);
    let pid: u32 = folder.read("pid").trim().parse().unwrap();
    wait_until("the grandchild to exit", || !is_alive(pid));
}

#[test]
fn ranks_exit_when_the_launcher_is_killed() {
    let folder = TempDir::new();
    let mut job = shell_job(&folder, "-n 1", "echo $$ > part; mv part pid; exec sleep 600");
    let process = Process::spawn(&folder, &mut job);
    wait_until("the rank to start", || folder.exists("pid"));
    process.signal(SIGKILL);
    process.wait();
    let pid: u32 = folder.read("pid").trim().parse().unwrap();
    wait_until("the rank to exit", || !is_alive(pid));
}

#[test]
fn signals_are_forwarded_and_a_clean_exit_is_success() {
    let folder = TempDir::new();
    let script = "trap 'echo saved; exit 0' TERM; trap 'echo noted' USR1; echo > ready$RANK; \
                  while :; do sleep 0.05; done";
    let job = Process::spawn(&folder, &mut shell_job(&folder, "-n 2 --run-dir run", script));
    wait_until("the ranks to start", || folder.exists("ready0") && folder.exists("ready1"));
    job.signal(SIGUSR1);
    wait_until("the first signal", || rank_log(&folder, "run", 0, "out").contains("noted"));
    job.signal(SIGTERM);
    job.wait().assert_code(0);
    for rank in 0..2 {
        assert!(rank_log(&folder, "run", rank, "out").ends_with("saved\n"), "rank {rank}");
    }
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 15 (TERM)");
}

#[test]
fn signal_after_a_failure_prevents_a_restart() {
    let folder = TempDir::new();
    // Rank 1 fails once rank 0 ignores TERM.
    let script = "trap '' TERM; if [ $RANK = 1 ]; then until [ -e up ]; do sleep 0.02; done; \
                  exit 3; fi; echo > up; while :; do sleep 0.1; done";
    let options = "-n 2 --run-dir run --max-restarts 2 --grace 60";
    let job = Process::spawn(&folder, &mut shell_job(&folder, options, script));
    wait_until("the failure", || {
        folder.exists("up") && folder.read("run/events.jsonl").contains("\"signal-sent\"")
    });
    job.signal(SIGTERM);
    job.wait().assert_code(3);
    assert_eq!(run_result(&folder, "run").restarts, 0, "no restart");
}

#[test]
fn ignored_signals_stay_ignored() {
    let folder = TempDir::new();
    let script = "echo > up; until [ -e go ]; do sleep 0.05; done";
    let job = shell_job(&folder, "-n 1 --run-dir run", script);
    // Like nohup: ignored signals are inherited across exec.
    let mut job = wrap(&job, "sh", &["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    let job = Process::spawn(&folder, &mut job);
    wait_until("the rank to start", || folder.exists("up"));
    job.signal(SIGHUP);
    std::thread::sleep(Duration::from_millis(300));
    folder.write("go", "");
    job.wait().assert_code(0);
    assert_eq!(run_result(&folder, "run").reason, "all ranks exited successfully");
}

#[test]
fn stopped_rank_receives_sigterm() {
    let script = "if [ $RANK = 0 ]; then kill -STOP $$; sleep 600; fi; sleep 0.5; exit 3";
    let start = Instant::now();
    run_job(&TempDir::new(), "-n 2 --grace 300", script).assert_code(3);
    assert_within(start, Duration::from_secs(15));
}

#[test]
fn orphaned_zombies_are_reaped() {
    let folder = TempDir::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (true &); done; sleep 1; \
                  ps --ppid $PPID -o stat= | grep -c Z";
    let run = run_job(&folder, "-n 1 --run-dir run", script);
    assert_eq!(rank_log(&folder, "run", 0, "out"), "0\n", "{run:?}");
}

#[test]
fn large_output_is_logged_completely() {
    let folder = TempDir::new();
    let script = "seq 40000; seq 40000 >&2; printf end";
    let run = run_job(&folder, "-n 2 --run-dir run --tee shown", script);
    assert_eq!(run.code, Some(0));
    let lines: String = (1..=40000).map(|n| format!("{n}\n")).collect();
    for rank in 0..2 {
        assert_eq!(rank_log(&folder, "run", rank, "out"), format!("{lines}end"));
        assert_eq!(rank_log(&folder, "run", rank, "err"), lines);
    }
    let last_lines = folder.read("shown").lines().filter(|l| l.ends_with(" end")).count();
    assert!((1..=2).contains(&last_lines), "merged or not, it is shown");
}

#[test]
fn identical_lines_of_several_ranks_are_merged() {
    let folder = TempDir::new();
    let out = run_job(&folder, "-n 4", "echo hello; sleep 0.3; echo rank $RANK").out;
    // How many lines are merged depends on timing; each rank is listed once.
    let listed = out.lines().filter_map(|l| l.strip_suffix("] hello")?.split_whitespace().last());
    let mut ranks: Vec<usize> = listed
        .flat_map(|w| match out.contains(" all 4] hello") {
            true => vec![0, 1, 2, 3],
            false => w.parse::<CpuSet>().unwrap().iter().collect(),
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3], "{out}");
    let out = run_job(&folder, "-n 4 --rank 2", "echo rank $RANK").out;
    assert!(out.contains("rank 2") && out.lines().count() == 1, "{out}");
}

#[test]
fn concurrent_jobs_use_different_ports() {
    let folder = TempDir::new();
    // Rank 0 of the first job listens like a framework would, which needs python.
    let server = "import os, socket, time; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); \
                  s.listen(); open('up', 'w').write(os.environ['MASTER_PORT']); time.sleep(600)";
    let mut first = command();
    first.env("TMPDIR", folder.path()).current_dir(folder.path());
    first.args(["launch", "-n", "1", "--", "python3", "-c", server]);
    let mut first = Process::spawn(&folder, &mut first);
    wait_until("the first job to listen", || folder.exists("up") || first.has_exited());
    if !folder.exists("up") {
        return eprintln!("skipped: no python3 to listen on a port");
    }
    wait_until("its port", || !folder.read("up").is_empty());
    let used = folder.read("up");
    let second = run_job(&folder, "-n 1", "echo port $MASTER_PORT");
    assert!(second.out.contains("port ") && !second.out.contains(&used), "{second:?} {used}");
    first.signal(SIGTERM);
    first.wait();
}

#[test]
fn unwritable_run_folder_does_not_hide_the_failure() {
    let run = run_job(&TempDir::new(), "-n 1 --run-dir run", "rm -r run; exit 7");
    run.assert_code(7).assert_stderr(["exit code 7", "result.json"]);
}

#[test]
fn launch_errors_are_reported() {
    let folder = TempDir::new();
    let missing = launch(&folder, "-- no-such-program");
    missing.assert_stderr(["rank 0: cannot execute no-such-program", "PATH"]);

    std::fs::create_dir_all(folder.join("run")).unwrap();
    run_job(&folder, "-n 1 --run-dir run", "true");
    let again = run_job(&folder, "-n 1 --run-dir run", "true").error_line();
    assert!(again.contains("--run-dir"), "the run folder is not overwritten: {again}");

    launch(&folder, "--system lumi-g -- true").assert_error("--dry-run");
    assert_ne!(launch(&folder, "").code, Some(0));
}

#[test]
fn failed_job_is_restarted() {
    let folder = TempDir::new();
    let script = "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; \
                  [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5";
    let run = run_job(&folder, "-n 2 --run-dir run --max-restarts 3", script);
    run.assert_code(0).assert_stderr([
        "restarting all ranks: restart 1 of 3",
        "restarting all ranks in 1 s: restart 2 of 3",
    ]);
    assert_eq!(run_result(&folder, "run").restarts, 2);
    assert_eq!(folder.read("run/log/restart-2/rank-1.out"), "try 2 of 3\n");

    let run = run_job(&folder, "-n 1 --max-restarts 1", "exit 4");
    assert_eq!(run.code, Some(4), "the exit code is that of the last failure");
}

#[test]
fn signal_during_the_backoff_ends_the_job() {
    let folder = TempDir::new();
    let mut job = shell_job(&folder, "-n 1 --run-dir run --max-restarts 9", "exit 4");
    let job = Process::spawn(&folder, &mut job);
    wait_until("the back-off", || job.stderr().contains("in 4 s: restart 4 of 9"));
    job.signal(SIGTERM);
    job.wait().assert_code(4);
    assert_eq!(run_result(&folder, "run").restarts, 3);
}

#[test]
fn no_process_survives_into_the_next_attempt() {
    let script = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then \
                  for p in $(cat pids); do [ ! -e /proc/$p ] || exit 9; done; exit 0; fi; \
                  for i in 1 2 3 4 5 6 7 8; do setsid sleep 600 >/dev/null 2>&1 & \
                  echo $! >> pids; done; exit 5";
    run_job(&TempDir::new(), "-n 1 --max-restarts 1", script).assert_code(0);
}

#[test]
fn background_output_is_drained_for_a_limited_time() {
    let folder = TempDir::new();
    let script = "{ sleep 0.3; echo last words; } & exit 4";
    let run = run_job(&folder, "-n 1 --run-dir run", script);
    assert_eq!((run.code, rank_log(&folder, "run", 0, "out").as_str()), (Some(4), "last words\n"));
    let start = Instant::now();
    run_job(&folder, "-n 1", "sleep 600 & exit 0");
    assert!(start.elapsed() < Duration::from_secs(60), "draining is limited");
    run_command(shell_job(&folder, "-n 1", "yes & exit 0").stdout(Stdio::null()));
    assert!(start.elapsed() < Duration::from_secs(120), "also with endless output");
}

#[test]
fn hang_is_reported_with_the_state_of_each_rank() {
    let folder = TempDir::new();
    let options = "-n 2 --run-dir run --hang-timeout 2 --max-restarts 1";
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 600";
    let run = run_job(&folder, options, script);
    assert_eq!(run.code, Some(0), "the restart does not hang: {run:?}");
    assert_contains(&run.err, ["used CPU time for 2 s", "ranks 0-1 were waiting"]);

    let options = "-n 1 --run-dir single --hang-timeout 1";
    run_job(&folder, options, "exec sleep 600").assert_code(124);
    assert_eq!(run_result(&folder, "single").hang.unwrap().len(), 1);
}

#[test]
fn blocked_terminal_does_not_delay_signal_handling() {
    let folder = TempDir::new();
    let mut job = shell_job(&folder, "-n 1 --run-dir run", "exec yes");
    // A pipe that is not read.
    let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
    let log = folder.join("run/log/rank-0.out");
    wait_until("enough output", || std::fs::metadata(&log).is_ok_and(|m| m.len() > 100_000));
    kill(&format!("-TERM {}", child.id()));
    wait_until("the launcher to exit", || child.try_wait().unwrap().is_some());
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 15 (TERM)");
}

#[test]
fn slurm_task_variables_are_set_per_rank() {
    let folder = TempDir::new();
    let mut job = shell_job(&folder, "-n 2 --run-dir run", "echo $SLURM_PROCID $SLURM_NTASKS");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    job.env("SLURM_JOB_ID", "5").env("SLURM_JOB_NODELIST", host.trim());
    run_command(job.env("SLURM_PROCID", "0").env("SLURM_NTASKS", "1")).assert_code(0);
    assert_eq!(rank_log(&folder, "run", 1, "out"), "1 2\n");
}

#[test]
fn wrap_applies_to_the_selected_ranks() {
    let folder = TempDir::new();
    let options = "-n 2 --run-dir run --wrap \"env TOOL='for {rank}'\" --wrap-ranks 1";
    run_job(&folder, options, "echo ${TOOL:-none}").assert_code(0);
    assert_eq!(rank_log(&folder, "run", 0, "out"), "none\n");
    assert_eq!(rank_log(&folder, "run", 1, "out"), "for 1\n");
}

#[test]
fn dry_run_starts_nothing() {
    let folder = TempDir::new();
    let words = "--dry-run --system lumi-g -N 2 --master-addr n1 -- touch 'a file'";
    let parts = ["rank 15 on node2", "touch 'a file'", "cpus     41-47"];
    launch(&folder, words).assert_ok(parts);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn dry_run_shows_the_option_that_a_setting_requires() {
    let folder = TempDir::new();
    let dry_run = |words: &str| launch(&folder, &format!("--dry-run {words} -- true")).ok();
    let option = "option of the agents' srun  --network=disable_rdzv_get";
    for system in ["frontier", "alps"] {
        let two = format!("--system {system} -N 2");
        assert_contains(dry_run(&two), option);
        for other in [
            format!("--system {system}"),
            format!("{two} --without FI_CXI_RDZV_PROTO"),
            format!("{two} --launcher pals"),
        ] {
            assert!(!dry_run(&other).contains("agents' srun"), "{other}");
        }
        let mut own = command();
        own.args(["launch", "--dry-run", "--system", system, "-N", "2", "true"]);
        let own: CommandOutput = own.env("FI_CXI_RDZV_PROTO", "default").output().unwrap().into();
        assert!(!own.ok().contains("agents' srun"), "a value of the user is kept");
    }
}

#[test]
fn dry_run_shows_the_variables_of_check_net() {
    let folder = TempDir::new();
    let text = launch(&folder, "--dry-run --system lumi-g -N 2 --require-net cxi -- true").ok();
    for line in [
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,ENV",
        "NCCL_DEBUG_FILE=RUN-FOLDER/net/rank-15.log",
    ] {
        assert_contains(&text, &*format!("  env      {line}  the network is checked"));
    }
    assert!(!launch(&folder, "--dry-run --system lumi-g -- true").ok().contains("NCCL_DEBUG"));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn run_folder_is_removed_if_no_rank_started() {
    let folder = TempDir::new();
    let run = launch(&folder, "-n 1 --run-dir run -- no-such-program");
    assert_eq!(run.code, Some(127), "like a shell: {run:?}");
    assert!(!folder.exists("run"));
    run_job(&folder, "-n 1 --run-dir run", "true").assert_code(0);
}

#[test]
fn out_of_range_ranks_and_nodes_are_rejected() {
    let folder = TempDir::new();
    for (options, code, what) in [
        ("--rank 7", 1, "--rank 7 is out of range: the job has ranks 0 to 1"),
        ("--wrap env --wrap-ranks 2", 1, "--wrap-ranks 2"),
        ("--spares 4294967295 --min-nodes 1", 1, "--spares 4294967295 leaves no node"),
        ("--min-nodes 4", 1, "--min-nodes 4"),
        ("", 127, "no such file on this node"),
    ] {
        let run = launch(&folder, &format!("-n 2 --oversubscribe {options} -- ./nothing"));
        run.assert_code(code).assert_stderr(what);
    }
}

#[test]
fn launcher_has_no_effect_on_one_node() {
    let run = launch(&TempDir::new(), "-n 1 --launcher srun -- true").assert_code(0);
    assert_contains(&run.err, "note: --launcher has no effect on one node");
    let run = launch(&TempDir::new(), "-n 1 --launcher-option=--x -- true").assert_code(0);
    assert_contains(&run.err, "note: --launcher-option has no effect outside an allocation");
    for tool in ["''", "'\"x'"] {
        let run = launch(&TempDir::new(), &format!("-n 1 --wrap {tool} -- true"));
        run.assert_usage_error("'--wrap <TOOL>'");
    }
}

#[test]
fn dry_run_places_no_ranks_on_spares() {
    let folder = TempDir::new();
    folder.write("hosts", "a\nb\nc\n");
    let options = "--master-addr a --ranks-per-node 1 --spares 1";
    let run = launch(&folder, &format!("--dry-run --hostfile hosts {options} -- true"));
    assert!(run.out.contains("WORLD_SIZE=2") && !run.out.contains("on c"), "{run:?}");
}

#[test]
fn ranks_have_no_controlling_terminal() {
    let folder = TempDir::new();
    let rank = "read x < /dev/tty || echo none";
    let line = format!("{REGATTA} launch -n 1 --run-dir run -- sh -c '{rank}'");
    let mut script = Command::new("script");
    script.current_dir(folder.path()).args(["-qec", &line, "typed"]).stdin(Stdio::null());
    let Ok(out) = script.output() else { return eprintln!("skipped: no `script`") };
    assert!(out.status.success(), "{out:?}");
    assert_eq!(rank_log(&folder, "run", 0, "out"), "none\n");
}

#[test]
fn run_folder_is_set_in_the_environment() {
    let folder = TempDir::new();
    let script =
        "test \"$REGATTA_RUN_DIR\" = \"$PWD/some/run\" && touch \"$REGATTA_RUN_DIR/own-$RANK\"";
    run_job(&folder, "-n 2 --run-dir some/run", script).ok();
    assert!(folder.exists("some/run/own-0") && folder.exists("some/run/own-1"));
    assert_contains(folder.read("some/run/environment.json"), "REGATTA_RUN_DIR");
}
