//! Error handling of `regatta bench`: invalid options, interruption, failing ranks and disks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use libc::{SIGINT, SIGTERM};
use regatta_measure::read::read;
use regatta_model::{BenchResult, document};
use regatta_testbed::{assert_contains, default_signals, wait_until, write_with_mode};

use crate::support::bench::{bench, load_result, rows, run};
use crate::support::process::{
    BlockedOutput, Process, assert_full_output_is_an_error, is_alive, kill, launch_regatta,
    rank_log, run_command, run_result, shell_job,
};
use crate::support::{REGATTA, TempDir, pty};

/// The first sizes finish quickly; the last take long enough to interrupt the run.
const LONG: &str = "-b 8 -e 64M -f 2 -n 500 -c 0";

/// Waits for two rows and loads the partial result.
fn partial_result(folder: &TempDir, file: &str) -> BenchResult {
    let mut partial = None;
    wait_until("two sizes", || {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        partial = document::from_json(&text).ok().filter(|result| rows(result).len() >= 2);
        partial.is_some()
    });
    partial.unwrap()
}

/// Starts `regatta bench`.
fn spawn(folder: &TempDir, words: &str) -> Process {
    Process::spawn(folder, &mut bench(folder, words))
}

/// Asserts that the partial result is saved and all ranks have ended.
fn assert_saved(folder: &TempDir, file: &str, before: &BenchResult) {
    let result = load_result(folder, file);
    assert!(!result.complete);
    assert!(rows(&result).starts_with(&rows(before)), "saved rows are lost");
    for device in &result.devices {
        wait_until("the end of all ranks", || !is_alive(device.pid));
    }
}

#[test]
fn an_interrupted_run_saves_its_result() {
    let folder = TempDir::new();
    let words = format!("all-reduce {LONG} --ranks 2 --run-dir run --backend host");
    let process = spawn(&folder, &words);
    let before = partial_result(&folder, "run/bench.json");
    for device in &before.devices {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", device.pid)).unwrap();
        assert!(maps.contains("regatta-comm"), "ranks of a node use shared memory");
    }
    let run = process.interrupt().assert_code(128 + SIGINT);
    assert_contains(&run.err, ["interrupted; ", "saved: run/bench.json"]);
    assert_saved(&folder, "run/bench.json", &before);
}

#[test]
fn an_interrupted_job_saves_its_result() {
    for (options, file) in [("", "run/bench.json"), ("--out own.json", "own.json")] {
        let folder = TempDir::new();
        let words = format!("bench all-reduce {LONG} {options}");
        let process = Process::spawn(&folder, &mut launch_regatta(&folder, "-n 2", &words));
        let before = partial_result(&folder, file);
        assert!(!before.settings.contains_key("REGATTA_RUN_DIR"), "{:?}", before.settings);
        process.interrupt().assert_code(128 + SIGINT);
        assert_saved(&folder, file, &before);
    }
}

#[test]
fn several_results_of_a_job_have_different_files() {
    let folder = TempDir::new();
    let bench = format!("{REGATTA} bench all-reduce -e 64 -n 2");
    let script = format!("{bench} --label a && {bench} --label b");
    let mut launch = shell_job(&folder, "-n 2 --run-dir run", &script);
    run_command(launch.env("TMPDIR", folder.path())).ok();
    let label = |file| load_result(&folder, file).label;
    assert_eq!([label("run/bench.json"), label("run/bench-2.json")], ["a", "b"]);
}

#[test]
fn an_interrupted_sweep_saves_its_results() {
    let folder = TempDir::new();
    let sweep = "--run-dir swept --out all.json --sweep FI_A=1,2,3";
    let process = spawn(&folder, &format!("all-reduce {LONG} --ranks 2 {sweep}"));
    let killed = partial_result(&folder, "swept/0/bench.json");
    kill(&format!("-9 {}", killed.devices[1].pid));
    let before = partial_result(&folder, "swept/1/bench.json");
    let run = process.interrupt().assert_code(128 + SIGINT);
    assert_contains(&run.err, ["note: FI_A=1 failed", "note: FI_A=2 interrupted"]);
    assert!(!run.out.contains("best setting"), "no complete run: {}", run.out);
    assert_saved(&folder, "swept/0/bench.json", &killed);
    assert_saved(&folder, "swept/1/bench.json", &before);
    assert!(!folder.exists("swept/2"), "the next child is not started");
    let both = read("all.json", &folder.read("all.json")).unwrap();
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|result| !result.complete && result.notes.len() == 1));
}

#[test]
fn a_failing_setting_does_not_end_a_sweep() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --backend tcp";
    run(&folder, &format!("{words} --tune table.json")).ok();
    let sweep = "--sweep REGATTA_TUNING=none.json,table.json --run-dir failed -J all.json";
    let failed = run(&folder, &format!("{words} {sweep}")).assert_code(1);
    let note = "note: REGATTA_TUNING=none.json failed (exit status: 1); nothing was measured";
    assert_contains(&failed.err, note);
    let table = failed.out.split_once("best setting").unwrap().1;
    let best: Vec<&str> = table.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(best.len(), 2, "{table}");
    assert!(best.iter().all(|line| line.ends_with("-  REGATTA_TUNING=table.json")), "{table}");
    let results = read("all.json", &folder.read("all.json")).unwrap();
    assert_eq!(results, [load_result(&folder, "failed/1/bench.json")]);

    let again = run(&folder, &format!("{words} {sweep}")).error_line();
    assert!(again.starts_with("failed/1/bench.json already exists"), "{again}");

    // Reading a FIFO blocks until it is opened for writing.
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    let sweep = "--sweep REGATTA_TUNING=table.json,pipe,none.json --run-dir stopped";
    let process = spawn(&folder, &format!("{words} {sweep} --launch=--grace=1"));
    wait_until("the second child", || folder.exists("stopped/1/log/rank-1.err"));
    process.signal(SIGTERM);
    let stopped = process.wait().assert_code(128 + SIGTERM);
    assert_contains(&stopped.err, "note: REGATTA_TUNING=pipe interrupted");
    let table = stopped.out.split_once("best setting").unwrap().1;
    assert_eq!(table.matches("REGATTA_TUNING=table.json").count(), 2, "{table}");
    assert!(!folder.exists("stopped/2"), "the next child is not started");
}

#[test]
fn a_killed_rank_is_named_and_the_result_saved() {
    for victim in [0, 2] {
        let folder = TempDir::new();
        let process = spawn(&folder, &format!("all-reduce {LONG} --ranks 3 --run-dir run"));
        let before = partial_result(&folder, "run/bench.json");
        kill(&format!("-9 {}", before.devices[victim].pid));
        let run = process.wait();
        assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
        // Reported by the launcher or by a peer, whichever is first.
        assert_contains(&run.err, &format!("rank {victim} on "));
        assert!(!run.err.contains("regatta-bench-event"), "internal output: {}", run.err);
        assert_saved(&folder, "run/bench.json", &before);
    }
}

#[test]
fn a_full_disk_does_not_end_a_run() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --out";
    let full = run(&folder, &format!("{words} /dev/full")).assert_code(1);
    assert!(full.out.contains("Collective test concluded"), "all sizes are measured: {}", full.out);
    let last = full.err.lines().last().unwrap();
    let expected =
        "error: the result is not saved: cannot write /dev/full: No space left on device";
    assert!(last.starts_with(expected), "{}", full.err);
}

#[test]
fn full_standard_output_is_an_error_after_the_run() {
    let folder = TempDir::new();
    for (number, format) in ["", "--csv", "--json"].iter().enumerate() {
        let words = format!("-b 8 -e 64 -f 8 -n 2 --ranks 2 --run-dir run{number} {format}");
        assert_full_output_is_an_error(&mut bench(&folder, &format!("all-reduce {words}")));
        assert!(load_result(&folder, &format!("run{number}/bench.json")).complete, "{format}");
    }
    let words = "bench all-reduce -b 8 -e 8 -n 2";
    let script = format!("{REGATTA} {words} > /dev/full");
    let rank = run_command(&mut shell_job(&folder, "-n 1 --run-dir launch", &script));
    rank.assert_code(1).assert_stderr("error: standard output: No space left on device");
}

#[test]
fn run_continues_and_handles_signals_while_its_output_is_not_read() {
    let folder = TempDir::new();
    let words = format!("all-reduce {LONG} --ranks 2 --run-dir run");
    let process = BlockedOutput::spawn(bench(&folder, &words));
    let before = partial_result(&folder, "run/bench.json");
    kill(&format!("-INT {}", process.pid()));
    let run = process.read().assert_code(128 + SIGINT);
    assert_contains(&run.out, "# regatta version");
    assert_saved(&folder, "run/bench.json", &before);
}

#[test]
fn result_may_be_read_later_than_the_heartbeat_timeout() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run --json";
    let process =
        BlockedOutput::spawn(bench(&folder, &format!("{words} --launch=--heartbeat-timeout=1")));
    wait_until("the end of the ranks", || folder.exists("run/result.json"));
    std::thread::sleep(Duration::from_millis(1500));
    let out = process.read().ok();
    assert!(document::from_json::<BenchResult>(&out).unwrap().complete);
}

#[test]
fn progress_bar_is_erased_before_the_report_of_a_signal() {
    let folder = TempDir::new();
    let mut command = bench(&folder, &format!("all-reduce {LONG} --ranks 2 --run-dir run"));
    default_signals(&mut command);
    let (terminal, child) = pty::spawn_on_pty(command, &[]);
    let pid = child.id();
    let shown = std::thread::spawn(move || pty::output((terminal, child)));
    partial_result(&folder, "run/bench.json");
    kill(&format!("-INT {pid}"));
    let (shown, _) = shown.join().unwrap();
    assert_contains(&shown, "░");
    let line = shown.lines().find(|line| line.contains("terminated by signal 2")).unwrap();
    let left = line.rsplit("\x1b[2K").next().unwrap();
    assert!(!left.contains(['█', '░']), "{line:?}");
}

#[test]
fn error_of_the_ranks_is_reported_once_with_the_fix_and_logged() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run --backend host";
    let limit = "--launch \"--wrap 'prlimit --fsize=4096'\"";
    let run = run(&folder, &format!("{words} {limit}")).assert_code(1);
    let error = "growing shared memory: File too large (os error 27); raise the limit with \
                 `ulimit -f unlimited`";
    assert_eq!(run.err.matches(error).count(), 1, "{run:?}");
    let failed = run_result(&folder, "run").failure.unwrap().rank;
    assert_contains(rank_log(&folder, "run", failed, "err"), error);
}

#[test]
fn error_lines_of_ranks_that_do_not_fail_are_shown() {
    let folder = TempDir::new();
    let noisy = "#!/bin/sh\necho 'error: of a library' >&2\nexec \"$@\"\n";
    write_with_mode(folder.join("noisy"), 0o755, noisy);
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 1 --run-dir run --launch='--wrap ./noisy'";
    let run = run(&folder, words).assert_code(0);
    assert_contains(&run.err, " 0] error: of a library\n");
}

/// Invalid options and their errors.
const INVALID: [(&str, &str); 11] = [
    ("all-reduce -b 8 -e 4", "minimum size 8 (-b) exceeds maximum size 4 (-e)"),
    ("all-reduce -b 0 -e 1K -f 2", "the size stays at 0 (-b): use -b 1 or more"),
    ("broadcast -r 2 --ranks 2", "-r 2 is out of range: the job has ranks 0 to 1"),
    ("send-recv --pairs --ranks 1", "--pairs needs at least two ranks"),
    ("all-reduce --plot x.png", "must be .svg or .html"),
    ("all --plot x.svg", "use .html"),
    ("send-recv --pairs --plot x.html", "pairs require .svg"),
    ("all-reduce --baseline none.json", "--baseline: cannot read none.json: No such file"),
    ("all-reduce --launch --nonsense", "--launch: unexpected argument '--nonsense'"),
    ("all-reduce --sweep A", "invalid setting \"A\""),
    ("all-reduce --scan", "--scan needs at least two nodes"),
];

#[test]
fn invalid_options_are_rejected_before_the_launch() {
    let folder = TempDir::new();
    for (words, what) in INVALID {
        run(&folder, words).assert_error(what);
        assert_eq!(folder.names(), [""; 0], "{words}");
    }
    let exclusive = ["--sweep A=1 --scan", "--sweep A=1 --baseline x", "--scan --baseline x"];
    for words in ["--json --csv", "-n 0", "--tolerance 5%", "--ranks 0"].iter().chain(&exclusive) {
        assert_eq!(run(&folder, &format!("all-reduce {words}")).code, Some(2), "{words}");
    }
    folder.write("other.txt", "not a result\n");
    run(&folder, "all-reduce --baseline other.txt").assert_error("other.txt: found no table");
    let error = run(&folder, "read none other.txt").error_line();
    assert!(error.starts_with("cannot read none: No such file"), "{error}");
    assert_eq!(folder.names(), ["other.txt"]);
}

#[test]
fn a_disk_benchmark_removes_its_files() {
    let folder = TempDir::new();
    std::fs::create_dir(folder.join("disk")).unwrap();
    let words = "disk --ranks 2 --size 1M --dir disk --run-dir run --slower-than 100%";
    run(&folder, words).assert_ok(["disk write 1 MiB", "disk create"]);
    let result = load_result(&folder, "run/bench.json");
    for rank in 0..2 {
        assert!(result.roofline.iter().filter(|one| one.rank == rank).count() >= 5);
    }
    assert!(result.complete);
    assert_eq!(folder.list("disk"), [""; 0]);
    run(&folder, "disk --ranks 1 --size 1M --dir nowhere").assert_code(1).assert_stderr("nowhere");
}

#[test]
fn long_events_of_rank_0_are_received() {
    let folder = TempDir::new();
    let long = "x".repeat(70_000);
    let words = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --run-dir run";
    run_command(bench(&folder, words).env("NCCL_FOO", &long))
        .assert_ok("Collective test concluded");
    let result = load_result(&folder, "run/bench.json");
    assert!(result.complete && result.settings["NCCL_FOO"] == long);
    assert_eq!(rows(&result).len(), 2);
}

#[test]
fn invalid_utf8_in_arguments_and_environment_is_accepted() {
    let folder = TempDir::new();
    let foreign = OsStr::from_bytes(b"r\xff.json");
    let mut bench = bench(&folder, "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run");
    bench.env("NCCL_FOO", foreign).env(foreign, "x").arg("--out").arg(foreign);
    run_command(&mut bench).ok();
    let result: BenchResult = document::from_json(&folder.read(foreign)).unwrap();
    assert_eq!(result.settings["NCCL_FOO"], "r\u{fffd}.json");
    assert!(result.command.unwrap().contains("--out r\u{fffd}.json"));
}
