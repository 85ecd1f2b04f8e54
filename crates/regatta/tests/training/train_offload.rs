//! `regatta train` with state offloaded to disk: full disks, failing writes and shared folders.

use regatta_testbed::wait_until;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::disk::{SmallDisk, fill};
use crate::support::metrics::assert_identical;
use crate::support::process::{Process, pid_of_rank};
use crate::support::train::{
    ENDLESS, STOPPED_EARLY, TINY, checkpoints, last_step, metrics, spawn, tiny_run, train_command,
    train_tiny, wait_for_more_steps, wait_for_step,
};
use crate::support::{CommandOutput, TempDir};

/// All state offloaded to disk, on two ranks.
const OFFLOAD: &str = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";

/// Asserts that the run is bitwise identical to an undisturbed one.
fn assert_equals_undisturbed_run(folder: &TempDir, words: &str) {
    let found = metrics(folder, "run");
    let steps = found.steps.len() as u64;
    let full = tiny_run(folder, "full", &format!("{OFFLOAD} {words} train.steps={steps}"));
    assert_identical(&found, &full, steps);
}

/// Asserts that an error of a rank contains all parts.
fn assert_rank_error(run: CommandOutput, parts: &[&str]) {
    let mut errors = run.err.lines().filter_map(|line| Some(line.split_once("error: ")?.1));
    let is_expected = |error: &str| parts.iter().all(|part| error.contains(part));
    assert!(errors.any(is_expected), "{parts:?}: {run:?}");
}

#[test]
fn a_full_disk_fails_the_start_but_not_a_running_training() {
    let folder = TempDir::new();
    let Some(disk) = SmallDisk::or_skip(&folder) else { return };
    let ballast = disk.path("ballast");
    let words = format!("{TINY} {OFFLOAD} {ENDLESS} offload.dir=small --run-dir run");
    let training = disk.spawn_train(&words);
    wait_for_step(&folder, "run", 5);
    fill(&ballast);
    wait_for_more_steps(&folder, "run", 20);
    training.interrupt().assert_code(STOPPED_EARLY);

    // The offload files of the first run are gone.
    fill(&ballast);
    let last = last_step(&folder, "run");
    let saved = checkpoints(&folder, "run");
    let resume = format!("--resume run -n 2 train.steps={}", last + 10);
    let full = [
        "small/parameters-",
        ": cannot create a swap file of ",
        "No space left on device",
        "free disk space there, or set offload.dir to another directory",
    ];
    assert_rank_error(disk.spawn_train(&resume).wait().assert_code(1), &full);
    assert_eq!((last_step(&folder, "run"), checkpoints(&folder, "run")), (last, saved));

    std::fs::remove_file(&ballast).unwrap();
    disk.spawn_train(&resume).wait().assert_ok(&format!("resumed after step {last} from "));
    assert_eq!(std::fs::read_dir(disk.path("")).unwrap().count(), 0);
    assert_equals_undisturbed_run(&folder, "");
}

#[test]
fn a_failed_write_ends_the_run_which_resumes_bitwise() {
    let folder = TempDir::new();
    let start = |words: &str| Process::spawn(&folder, &mut train_command(&folder, words));
    for _ in 0..2 {
        let training = start(&format!("{TINY} {OFFLOAD} {ENDLESS} --run-dir run"));
        wait_for_more_steps(&folder, "run", 12);
        // Not rank 0, which also writes the metrics.
        let pid = pid_of_rank(&folder, 1).unwrap();
        let limit = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Pid::from_raw(pid as i32), Resource::Fsize, limit).unwrap();
        let failed = [
            "run/offloaded/",
            "-1: ",
            ": cannot write ",
            ": File too large",
            "raise the file size limit with `ulimit -f unlimited`",
        ];
        assert_rank_error(training.wait().assert_code(1), &failed);
    }
    let steps = last_step(&folder, "run") + 10;
    let resumed = start(&format!("--resume run -n 2 train.steps={steps}")).wait();
    resumed.assert_ok("resumed after step ");
    assert_equals_undisturbed_run(&folder, "");
}

#[test]
fn runs_that_share_an_offload_folder_use_separate_files() {
    let [one, other] = [TempDir::new(), TempDir::new()];
    let offload = one.file("offload");
    let start = |folder: &TempDir, seed: u32| {
        let words = format!("{TINY} {OFFLOAD} offload.dir={offload} train.seed={seed} {ENDLESS}");
        spawn(folder, &format!("{words} --run-dir run"))
    };
    let first = start(&one, 1);
    wait_for_step(&one, "run", 5);
    let second = start(&other, 2);
    wait_for_step(&other, "run", 20);
    let expected = ["moments", "parameters"].iter().flat_map(|kind| {
        ["0", "0.1", "1", "1.1"].iter().map(move |suffix| format!("{kind}-{suffix}"))
    });
    assert_eq!(one.list("offload"), expected.collect::<Vec<_>>());
    wait_for_more_steps(&one, "run", 10);
    // The first run removes only its own files.
    first.interrupt().assert_code(STOPPED_EARLY);
    wait_for_more_steps(&other, "run", 10);
    second.interrupt().assert_code(STOPPED_EARLY);
    wait_until("an empty folder", || one.list("offload").is_empty());
    assert_equals_undisturbed_run(&one, "train.seed=1");
    assert_equals_undisturbed_run(&other, "train.seed=2");
}

#[test]
fn measured_disk_io_equals_the_estimate() {
    let folder = TempDir::new();
    for (ranks, more) in [(1, ""), (2, "zero=3 tiles=2")] {
        let words = format!("offload.optimizer=disk offload.parameters=disk {more} -n {ranks}");
        let run = train_tiny(&folder, &format!("{words} train.steps=12 --run-dir run-{ranks}"));
        for label in ["disk per step: read", "disk per step: written"] {
            let line = run.out.lines().find(|line| line.contains(label));
            let line = line.unwrap_or_else(|| panic!("{run:?}"));
            let values: Vec<&str> = line.split(label).nth(1).unwrap().split_whitespace().collect();
            let [expected, unit, measured, measured_unit] = values[..] else { panic!("{line}") };
            assert_eq!((expected, unit), (measured, measured_unit), "{line}");
        }
        run.ok();
    }
}
