//! `regatta train` with state on disk: a disk that is full or fails ends a training with one sentence
//! at most, and whoever else uses the folder is not in the way.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::disk::{SmallDisk, fill};
use support::job::{send_signal, wait_until};
use support::metrics::assert_same;
use support::train::{
    FOR_EVER, Started, TINY, checkpoints, done, metrics, processes, regatta, tiny, until_done,
};
use support::{CommandOutput, TempDir};

/// All that can be on disk, on two ranks.
const ON_DISK: &str = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";

const INT: i32 = 2;

/// The run is that of a training that nothing befell.
fn assert_undisturbed(folder: &TempDir, run: &str, words: &str) {
    let found = metrics(folder, run);
    let steps = found.steps.len() as u64;
    tiny(folder, &format!("{ON_DISK} {words} train.steps={steps} --run-dir whole-{run}")).ok();
    assert_same(&found, &metrics(folder, &format!("whole-{run}")), steps);
}

/// What went wrong, as ranks say it.
fn errors(run: &CommandOutput) -> Vec<&str> {
    let lines = run.err.lines().filter_map(|line| line.split_once("error: "));
    lines.map(|(_, error)| error).collect()
}

#[test]
fn a_full_disk_shows_at_the_start_and_never_later() {
    let folder = TempDir::new();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(disk) = SmallDisk::over(&small) else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let ballast = disk.path(&small.join("ballast"));
    let start = |words: &str| {
        let command = regatta(&folder, &format!("train {words}"));
        Started::of(&folder, &mut disk.enter(&command))
    };
    let on_small = format!("{TINY} {ON_DISK} offload.folder=small --run-dir run");
    let training = start(&format!("{on_small} {FOR_EVER}"));
    until_done(&folder, "run", 5);
    fill(&ballast);
    let before = done(&folder, "run");
    until_done(&folder, "run", before + 20);
    send_signal(&training.child, INT);
    assert_eq!(training.over().code, Some(0));

    // What it had is free again.
    fill(&ballast);
    let steps = done(&folder, "run") + 10;
    let kept = checkpoints(&folder, "run");
    let go_on = format!("--resume run -n 2 train.steps={steps}");
    let refused = start(&go_on).over();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let told = errors(&refused);
    let full = |error: &&str| {
        error.contains("small/parameters-")
            && error.contains(" cannot be made with ")
            && error.contains("No space left on device")
            && error.contains("make room there, or name another place by offload.folder")
    };
    assert!(told.iter().any(full), "{refused:?}");
    assert_eq!((done(&folder, "run"), checkpoints(&folder, "run")), (steps - 10, kept));

    std::fs::remove_file(&ballast).unwrap();
    let ended = start(&go_on).over();
    assert!(ended.out.contains(&format!("goes on after step {} of ", steps - 10)), "{ended:?}");
    assert_eq!(std::fs::read_dir(disk.path(&small)).unwrap().count(), 0);
    assert_undisturbed(&folder, "run", "");
}

/// It hears of files that grow too long as of other errors, and is not ended by that.
fn heedless(command: &Command) -> Command {
    let mut heedless = Command::new("env");
    heedless.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    heedless.current_dir(command.get_current_dir().unwrap()).arg("--ignore-signal=XFSZ");
    heedless.arg(command.get_program()).args(command.get_args());
    heedless
}

#[test]
fn a_write_that_fails_in_a_step_ends_it_and_nothing_is_lost() {
    let folder = TempDir::new();
    let words = format!("{TINY} {ON_DISK} {FOR_EVER} --run-dir run");
    let start = |words: &str| {
        let command = regatta(&folder, &format!("train {words}"));
        Started::of(&folder, &mut heedless(&command))
    };
    // Not rank 0, which writes the metrics, too.
    let victim = 1;
    for _ in 0..2 {
        let training = start(&words);
        let begun = done(&folder, "run");
        until_done(&folder, "run", begun + 12);
        let rank = processes(&folder).into_iter().find(|(_, rank)| *rank == Some(victim)).unwrap();
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Pid::from_raw(rank.0 as i32), Resource::Fsize, none).unwrap();
        let ended = training.over();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let failed = |error: &&str| {
            error.contains("run/offloaded/")
                && error.contains(&format!("-{victim}: "))
                && error.contains(" cannot be written: File too large")
                && error.contains("name another place by offload.folder")
        };
        assert!(errors(&ended).iter().any(failed), "{ended:?}");
    }
    let steps = done(&folder, "run") + 10;
    let ended = start(&format!("--resume run -n 2 train.steps={steps}")).over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("goes on after step "), "{ended:?}");
    assert_undisturbed(&folder, "run", "");
}

#[test]
fn trainings_that_use_a_folder_at_once_have_files_of_their_own() {
    let [one, other] = [TempDir::new(), TempDir::new()];
    let place = one.file("place");
    let words = |seed: u32, steps: &str| {
        format!("{TINY} {ON_DISK} offload.folder={place} train.seed={seed} {steps} --run-dir run")
    };
    let training = Started::new(&one, &words(1, FOR_EVER));
    until_done(&one, "run", 5);
    let second = Started::new(&other, &words(2, FOR_EVER));
    until_done(&other, "run", 20);
    let mut names: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let expected = ["moments-0", "moments-0.1", "moments-1", "moments-1.1"].into_iter();
    let expected =
        expected.chain(["parameters-0", "parameters-0.1", "parameters-1", "parameters-1.1"]);
    assert!(names.iter().eq(expected), "{names:?}");
    let before = done(&one, "run");
    until_done(&one, "run", before + 10);
    // One that goes leaves the other what is its own.
    send_signal(&training.child, INT);
    let ended = training.over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let before = done(&other, "run");
    until_done(&other, "run", before + 10);
    send_signal(&second.child, INT);
    let ended = second.over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_until("an empty folder", || std::fs::read_dir(&place).unwrap().count() == 0);
    assert_undisturbed(&one, "run", "train.seed=1");
    assert_undisturbed(&other, "run", "train.seed=2");
}

#[test]
fn what_is_read_and_written_is_shown_beside_what_was_expected() {
    let folder = TempDir::new();
    for (ranks, more) in [(1, ""), (2, "zero=3 tiles=2")] {
        let words = format!("offload.optimizer=disk offload.parameters=disk {more} -n {ranks}");
        let out = tiny(&folder, &format!("{words} train.steps=12 --run-dir run-{ranks}")).ok();
        for what in ["read a step", "written a step"] {
            let line =
                out.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{out}"));
            let figures: Vec<&str> = line.split(what).nth(1).unwrap().split_whitespace().collect();
            let [expected, unit, measured, same] = figures[..] else { panic!("{line}") };
            assert_eq!((expected, unit), (measured, same), "{line}");
        }
    }
}
