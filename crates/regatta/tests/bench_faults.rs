//! Error handling of `regatta bench`: invalid options, interruption, failing ranks and disks.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

use regatta_measure::read::read;
use regatta_model::{BenchResult, document};
use support::bench::{bench, load_result, rows, run};
use support::job::{is_alive, run_command, send_signal, shell_job, wait_until};
use support::{CommandOutput, TempDir, command};

/// The first sizes finish quickly; the last take long enough to interrupt the run.
const LONG: &str = "-b 8 -e 64M -f 2 -n 500 -c 0";

/// Waits for two rows and loads the partial result.
fn partial_result(folder: &TempDir, file: &str) -> BenchResult {
    let path = folder.path().join(file);
    let result = || -> Option<BenchResult> {
        let result = document::from_json(&std::fs::read_to_string(&path).ok()?).ok()?;
        (rows(&result).len() >= 2).then_some(result)
    };
    wait_until("two sizes", || result().is_some());
    result().unwrap()
}

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait(child: Child) -> CommandOutput {
    CommandOutput::from(child.wait_with_output().unwrap())
}

/// Asserts that the partial result is saved and all ranks have ended.
fn assert_saved(folder: &TempDir, file: &str, before: &BenchResult) {
    let result = load_result(folder, file);
    assert!(!result.complete);
    assert!(rows(&result).starts_with(&rows(before)), "saved rows are lost");
    for device in &result.devices {
        let pid = device.pid.to_string();
        wait_until("the end of all ranks", || !is_alive(&pid));
    }
}

#[test]
fn an_interrupted_run_saves_its_result() {
    let folder = TempDir::new();
    let words = format!("all-reduce {LONG} --ranks 2 --run-dir run --backend host");
    let child = spawn(&mut bench(&folder, &words));
    let before = partial_result(&folder, "run/bench.json");
    for device in &before.devices {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", device.pid)).unwrap();
        assert!(maps.contains("regatta-comm"), "ranks of a node use shared memory");
    }
    send_signal(&child, 2);
    let run = wait(child);
    assert_eq!(run.code, Some(128 + 2), "{run:?}");
    assert!(run.err.contains("interrupted; "), "{}", run.err);
    assert!(run.err.contains("saved: run/bench.json"), "{}", run.err);
    assert_saved(&folder, "run/bench.json", &before);
}

#[test]
fn an_interrupted_job_saves_its_result_in_the_run_folder() {
    let folder = TempDir::new();
    let mut launch = command();
    launch.env("TMPDIR", folder.path()).current_dir(folder.path());
    launch.args(["launch", "-n", "2", "--oversubscribe", "--run-dir", "run", "--"]);
    launch.arg(env!("CARGO_BIN_EXE_regatta")).args(["bench", "all-reduce"]);
    let child = spawn(launch.args(LONG.split(' ')));
    let before = partial_result(&folder, "run/bench.json");
    assert!(!before.settings.contains_key("REGATTA_RUN_DIR"), "{:?}", before.settings);
    send_signal(&child, 2);
    assert_eq!(wait(child).code, Some(128 + 2));
    assert_saved(&folder, "run/bench.json", &before);
}

#[test]
fn several_results_of_a_job_have_different_files() {
    let folder = TempDir::new();
    let bench = format!("{} bench all-reduce -e 64 -n 2", env!("CARGO_BIN_EXE_regatta"));
    let script = format!("{bench} --label a && {bench} --label b");
    let mut launch = shell_job(&folder, &["-n", "2", "--run-dir", "run"], &script);
    run_command(launch.env("TMPDIR", folder.path())).ok();
    let label = |file| load_result(&folder, file).label;
    assert_eq!([label("run/bench.json"), label("run/bench-2.json")], ["a", "b"]);
}

#[test]
fn an_interrupted_job_and_sweep_save_their_results() {
    let folder = TempDir::new();
    let words = "launch -n 2 --oversubscribe --run-dir run --";
    let mut launch = command();
    launch.env("TMPDIR", folder.path()).current_dir(folder.path()).args(words.split(' '));
    launch.arg(env!("CARGO_BIN_EXE_regatta")).args(["bench", "all-reduce", "--out", "own.json"]);
    let child = spawn(launch.args(LONG.split(' ')));
    let before = partial_result(&folder, "own.json");
    send_signal(&child, 2);
    assert_eq!(wait(child).code, Some(128 + 2));
    assert_saved(&folder, "own.json", &before);

    let words = format!(
        "all-reduce {LONG} --ranks 2 --run-dir swept --out all.json --sweep REGATTA_A=1,2,3"
    );
    let child = spawn(&mut bench(&folder, &words));
    let killed = partial_result(&folder, "swept/0/bench.json");
    let pid = killed.devices[1].pid.to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let before = partial_result(&folder, "swept/1/bench.json");
    send_signal(&child, 2);
    let run = wait(child);
    assert_eq!(run.code, Some(128 + 2), "{run:?}");
    assert!(run.err.contains("note: REGATTA_A=1 failed"), "{}", run.err);
    assert!(run.err.contains("note: REGATTA_A=2 interrupted"), "{}", run.err);
    assert!(!run.out.contains("best setting"), "no complete run: {}", run.out);
    assert_saved(&folder, "swept/0/bench.json", &killed);
    assert_saved(&folder, "swept/1/bench.json", &before);
    assert!(!folder.path().join("swept/2").exists(), "the next child is not started");
    let list = std::fs::read_to_string(folder.path().join("all.json")).unwrap();
    let both = read("all.json", &list).unwrap();
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|result| !result.complete && result.notes.len() == 1));
}

#[test]
fn a_failing_setting_does_not_end_a_sweep() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --backend tcp";
    run(&folder, &format!("{words} --tune table.json")).ok();
    let sweep = "--sweep REGATTA_TUNING=none.json,table.json --run-dir failed -J all.json";
    let failed = run(&folder, &format!("{words} {sweep}"));
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let note = "note: REGATTA_TUNING=none.json failed (exit status: 1); nothing was measured";
    assert!(failed.err.contains(note), "{}", failed.err);
    let table = failed.out.split_once("best setting").unwrap().1;
    let best: Vec<&str> = table.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(best.len(), 2, "{table}");
    assert!(best.iter().all(|line| line.ends_with("-  REGATTA_TUNING=table.json")), "{table}");
    let list = std::fs::read_to_string(folder.path().join("all.json")).unwrap();
    assert_eq!(read("all.json", &list).unwrap(), [load_result(&folder, "failed/1/bench.json")]);

    let again = run(&folder, &format!("{words} {sweep}")).error_line();
    assert!(again.starts_with("failed/1/bench.json already exists"), "{again}");

    // Reading a FIFO blocks until it is opened for writing.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let sweep = "--sweep REGATTA_TUNING=table.json,pipe,none.json --run-dir stopped";
    let child = spawn(&mut bench(&folder, &format!("{words} {sweep} --launch=--grace=1")));
    wait_until("the second child", || folder.path().join("stopped/1/log/rank-1.err").exists());
    send_signal(&child, 15);
    let stopped = wait(child);
    assert_eq!(stopped.code, Some(128 + 15), "{stopped:?}");
    assert!(stopped.err.contains("note: REGATTA_TUNING=pipe interrupted"), "{}", stopped.err);
    let table = stopped.out.split_once("best setting").unwrap().1;
    assert_eq!(table.matches("REGATTA_TUNING=table.json").count(), 2, "{table}");
    assert!(!folder.path().join("stopped/2").exists(), "the next child is not started");
}

#[test]
fn a_killed_rank_is_named_and_the_result_saved() {
    for victim in [0, 2] {
        let folder = TempDir::new();
        let words = format!("all-reduce {LONG} --ranks 3 --run-dir run");
        let child = spawn(&mut bench(&folder, &words));
        let before = partial_result(&folder, "run/bench.json");
        let pid = before.devices[victim].pid.to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        let run = wait(child);
        assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
        // Reported by the launcher or by a peer, whichever is first.
        assert!(run.err.contains(&format!("rank {victim} on ")), "{}", run.err);
        assert!(!run.err.contains("regatta-bench-event"), "internal output: {}", run.err);
        assert_saved(&folder, "run/bench.json", &before);
    }
}

#[test]
fn a_full_disk_does_not_end_a_run() {
    let folder = TempDir::new();
    let full = run(&folder, "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --out /dev/full");
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.out.contains("Collective test concluded"), "all sizes are measured: {}", full.out);
    let last = full.err.lines().last().unwrap();
    let expected = "error: cannot save the result: /dev/full: No space left on device";
    assert!(last.starts_with(expected), "{}", full.err);
    let nowhere = run(&folder, "all-reduce -b 8 -e 8 -n 2 --ranks 2 --out no/where.json");
    assert!(nowhere.err.contains("cannot save the result: no/where.json"), "{}", nowhere.err);
}

/// Invalid options and their errors.
const INVALID: [(&str, &str); 15] = [
    ("all-reduce -b 8 -e 4", "minimum size (8 bytes) exceeds maximum size (4 bytes)"),
    ("all-reduce -f 2 -i 8", "-f and -i are mutually exclusive"),
    ("all-reduce -d fp8", "unknown data type fp8"),
    ("all-reduce -o mulsum", "unknown reduction mulsum"),
    ("broadcast -r 2 --ranks 2", "root rank 2 (-r) is out of range: the ranks are 0 to 1"),
    ("send-recv --pairs --ranks 1", "--pairs needs at least two ranks"),
    ("all-reduce --plot x.png", "must be .svg or .html"),
    ("all --plot x.svg", "use .html"),
    ("send-recv --pairs --plot x.html", "pairs require .svg"),
    ("disk --plot x.svg", "--plot supports collectives and --pairs only"),
    ("all-reduce --baseline none.json", "none.json: No such file"),
    ("all-reduce --launch --nonsense", "--launch: unexpected argument '--nonsense'"),
    ("all-reduce --sweep A", "invalid setting \"A\""),
    ("all-reduce --scan", "--scan needs at least two nodes"),
    ("gemm --slower-than 10", "expected a percentage"),
];

#[test]
fn invalid_options_are_rejected_before_the_launch() {
    let folder = TempDir::new();
    for (words, what) in INVALID {
        let sentence = run(&folder, words).error_line();
        assert!(sentence.contains(what), "{words}: {sentence}");
        assert_eq!(folder.names(), [""; 0], "{words}");
    }
    let several = ["--sweep A=1 --scan", "--sweep A=1 --baseline x", "--scan --baseline x"];
    let others = ["--json --csv", "-n 0", "--tolerance 5%", "--ranks 0"];
    for words in several.iter().chain(&others) {
        assert_eq!(run(&folder, &format!("all-reduce {words}")).code, Some(2), "{words}");
    }
    let baseline = folder.write("other.txt", "nothing of the kind\n");
    let sentence = run(&folder, &format!("all-reduce --baseline {baseline}")).error_line();
    assert!(sentence.contains("other.txt: found no table"), "{sentence}");
    let sentence = run(&folder, "read none other.txt").error_line();
    assert!(sentence.starts_with("none: No such file"), "{sentence}");
    assert_eq!(folder.names(), ["other.txt"]);
}

#[test]
fn a_disk_benchmark_removes_its_files() {
    let folder = TempDir::new();
    std::fs::create_dir(folder.path().join("disk")).unwrap();
    let words = "disk --ranks 2 --size 1M --dir disk --run-dir run --slower-than 100%";
    let shown = run(&folder, words).ok();
    assert!(shown.contains("disk write 1 MiB") && shown.contains("disk create"), "{shown}");
    let result = load_result(&folder, "run/bench.json");
    for rank in 0..2 {
        assert!(result.roofline.iter().filter(|one| one.rank == rank).count() >= 5);
    }
    assert!(result.complete);
    assert_eq!(std::fs::read_dir(folder.path().join("disk")).unwrap().count(), 0);
    let missing = run(&folder, "disk --ranks 1 --size 1M --dir nowhere");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.err.contains("nowhere"), "{}", missing.err);
}

#[test]
fn long_events_of_rank_0_are_received() {
    let folder = TempDir::new();
    let long = "x".repeat(70_000);
    let words = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --run-dir run";
    let shown = run_command(bench(&folder, words).env("NCCL_FOO", &long)).ok();
    assert!(shown.contains("Collective test concluded"), "{shown}");
    let result = load_result(&folder, "run/bench.json");
    assert!(result.complete && result.settings["NCCL_FOO"] == long);
    assert_eq!(rows(&result).len(), 2);
}

#[test]
fn invalid_utf8_in_arguments_and_environment_is_accepted() {
    let folder = TempDir::new();
    let foreign = OsStr::from_bytes(b"r\xff.json");
    let mut bench = bench(&folder, "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run");
    let found =
        run_command(bench.env("NCCL_FOO", foreign).env(foreign, "x").arg("--out").arg(foreign));
    found.ok();
    let text = std::fs::read_to_string(folder.path().join(foreign)).unwrap();
    let result: BenchResult = document::from_json(&text).unwrap();
    assert_eq!(result.settings["NCCL_FOO"], "r\u{fffd}.json");
    assert!(result.command.unwrap().contains("--out r\u{fffd}.json"));
}
