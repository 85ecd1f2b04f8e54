//! `regatta train` with state offloaded to disk: full disks, failing writes and shared folders.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::disk::{SmallDisk, fill};
use support::job::{send_signal, wait_until};
use support::metrics::assert_identical;
use support::train::{
    ENDLESS, TINY, TrainProcess, checkpoints, last_step, metrics, pid_of_rank, regatta_command,
    train_tiny, wait_for_step,
};
use support::{CommandOutput, TempDir};

/// All state offloaded to disk, on two ranks.
const OFFLOAD: &str = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";

const SIGINT: i32 = 2;

/// Asserts that a run is bitwise identical to an undisturbed one.
fn assert_equals_undisturbed_run(folder: &TempDir, run: &str, words: &str) {
    let found = metrics(folder, run);
    let steps = found.steps.len() as u64;
    train_tiny(folder, &format!("{OFFLOAD} {words} train.steps={steps} --run-dir full-{run}")).ok();
    assert_identical(&found, &metrics(folder, &format!("full-{run}")), steps);
}

/// The errors of the ranks.
fn errors(run: &CommandOutput) -> Vec<&str> {
    let lines = run.err.lines().filter_map(|line| line.split_once("error: "));
    lines.map(|(_, error)| error).collect()
}

#[test]
fn a_full_disk_fails_the_start_but_not_a_running_training() {
    let folder = TempDir::new();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(disk) = SmallDisk::over(&small) else {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    };
    let ballast = disk.path(&small.join("ballast"));
    let start = |words: &str| {
        let command = regatta_command(&folder, &format!("train {words}"));
        TrainProcess::spawn_command(&folder, &mut disk.enter(&command))
    };
    let on_small = format!("{TINY} {OFFLOAD} offload.dir=small --run-dir run");
    let training = start(&format!("{on_small} {ENDLESS}"));
    wait_for_step(&folder, "run", 5);
    fill(&ballast);
    let before = last_step(&folder, "run");
    wait_for_step(&folder, "run", before + 20);
    send_signal(&training.child, SIGINT);
    assert_eq!(training.wait().code, Some(0));

    // The offload files of the first run are gone.
    fill(&ballast);
    let steps = last_step(&folder, "run") + 10;
    let saved = checkpoints(&folder, "run");
    let resume = format!("--resume run -n 2 train.steps={steps}");
    let refused = start(&resume).wait();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let is_full = |error: &&str| {
        error.contains("small/parameters-")
            && error.contains(": cannot create a swap file of ")
            && error.contains("No space left on device")
            && error.contains("free disk space there, or set offload.dir to another directory")
    };
    assert!(errors(&refused).iter().any(is_full), "{refused:?}");
    assert_eq!((last_step(&folder, "run"), checkpoints(&folder, "run")), (steps - 10, saved));

    std::fs::remove_file(&ballast).unwrap();
    let ended = start(&resume).wait();
    assert!(ended.out.contains(&format!("resumed after step {} from ", steps - 10)), "{ended:?}");
    assert_eq!(std::fs::read_dir(disk.path(&small)).unwrap().count(), 0);
    assert_equals_undisturbed_run(&folder, "run", "");
}

/// Wraps a command to ignore SIGXFSZ, so that the file size limit is a write error.
fn ignore_sigxfsz(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.current_dir(command.get_current_dir().unwrap()).arg("--ignore-signal=XFSZ");
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

#[test]
fn a_failed_write_ends_the_run_which_resumes_bitwise() {
    let folder = TempDir::new();
    let words = format!("{TINY} {OFFLOAD} {ENDLESS} --run-dir run");
    let start = |words: &str| {
        let command = regatta_command(&folder, &format!("train {words}"));
        TrainProcess::spawn_command(&folder, &mut ignore_sigxfsz(&command))
    };
    // Not rank 0, which also writes the metrics.
    let victim = 1;
    for _ in 0..2 {
        let training = start(&words);
        let first = last_step(&folder, "run");
        wait_for_step(&folder, "run", first + 12);
        let pid = pid_of_rank(&folder, victim).unwrap();
        let limit = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Pid::from_raw(pid as i32), Resource::Fsize, limit).unwrap();
        let ended = training.wait();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let failed = |error: &&str| {
            error.contains("run/offloaded/")
                && error.contains(&format!("-{victim}: "))
                && error.contains(": cannot write ")
                && error.contains(": File too large")
                && error.contains("set offload.dir to another directory")
        };
        assert!(errors(&ended).iter().any(failed), "{ended:?}");
    }
    let steps = last_step(&folder, "run") + 10;
    let ended = start(&format!("--resume run -n 2 train.steps={steps}")).wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("resumed after step "), "{ended:?}");
    assert_equals_undisturbed_run(&folder, "run", "");
}

#[test]
fn runs_that_share_an_offload_folder_use_separate_files() {
    let [one, other] = [TempDir::new(), TempDir::new()];
    let offload = one.file("offload");
    let words = |seed: u32, steps: &str| {
        format!("{TINY} {OFFLOAD} offload.dir={offload} train.seed={seed} {steps} --run-dir run")
    };
    let training = TrainProcess::spawn(&one, &words(1, ENDLESS));
    wait_for_step(&one, "run", 5);
    let second = TrainProcess::spawn(&other, &words(2, ENDLESS));
    wait_for_step(&other, "run", 20);
    let mut names: Vec<_> =
        std::fs::read_dir(&offload).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let expected = ["moments-0", "moments-0.1", "moments-1", "moments-1.1"].into_iter();
    let expected =
        expected.chain(["parameters-0", "parameters-0.1", "parameters-1", "parameters-1.1"]);
    assert!(names.iter().eq(expected), "{names:?}");
    let before = last_step(&one, "run");
    wait_for_step(&one, "run", before + 10);
    // The first run removes only its own files.
    send_signal(&training.child, SIGINT);
    let ended = training.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let before = last_step(&other, "run");
    wait_for_step(&other, "run", before + 10);
    send_signal(&second.child, SIGINT);
    let ended = second.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_until("an empty folder", || std::fs::read_dir(&offload).unwrap().count() == 0);
    assert_equals_undisturbed_run(&one, "run", "train.seed=1");
    assert_equals_undisturbed_run(&other, "run", "train.seed=2");
}

#[test]
fn measured_disk_io_equals_the_estimate() {
    let folder = TempDir::new();
    for (ranks, more) in [(1, ""), (2, "zero=3 tiles=2")] {
        let words = format!("offload.optimizer=disk offload.parameters=disk {more} -n {ranks}");
        let out =
            train_tiny(&folder, &format!("{words} train.steps=12 --run-dir run-{ranks}")).ok();
        for label in ["disk per step: read", "disk per step: written"] {
            let line =
                out.lines().find(|line| line.contains(label)).unwrap_or_else(|| panic!("{out}"));
            let values: Vec<&str> = line.split(label).nth(1).unwrap().split_whitespace().collect();
            let [expected, unit, measured, measured_unit] = values[..] else { panic!("{line}") };
            assert_eq!((expected, unit), (measured, measured_unit), "{line}");
        }
    }
}
