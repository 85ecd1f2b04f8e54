//! `regatta train` with ranks that share a model, one of which is killed in any phase: the end says
//! who it was, and what is trained again comes to the same bit by bit; on other ranks and another
//! split, to rounding.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use support::metrics::{Metrics, assert_near, assert_same};
use support::train::{
    FOR_EVER, Started, checkpoints, done, flip, metrics, processes, run, send, until_done,
};
use support::{CommandOutput, TempDir};

/// Two layers and heads, for stages and tensor-parallel ranks. A validation takes as long as some
/// steps, so that a rank can be killed in it.
const MODEL: &str = "layers=2 heads=2 width=16 context=16 batch=8 threads=1 warmup=5 \
                     decay_steps=50 eval_every=7 eval_batches=20 checkpoint.every=2";

const KILL: i32 = 9;

/// Nothing takes so long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// When a rank is killed.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// As soon as it is there.
    Beginning,
    /// Somewhere in steps.
    Steps,
    /// While a checkpoint is written.
    Checkpoint,
    /// While the model is tried.
    Validation,
    /// While state comes from the disk and goes there.
    Disk,
}

const PHASES: [Phase; 4] = [Phase::Beginning, Phase::Steps, Phase::Checkpoint, Phase::Validation];

const PHASES_ON_DISK: [Phase; 6] = [
    Phase::Disk,
    Phase::Beginning,
    Phase::Steps,
    Phase::Disk,
    Phase::Checkpoint,
    Phase::Validation,
];

/// A split, and another one on other ranks that goes on with what it kept.
struct Case {
    ranks: u32,
    split: &'static str,
    other_ranks: u32,
    other: &'static str,
}

impl Case {
    /// Kills a rank in each phase, each time another one; each time the run is gone on with. Then it
    /// must be as if nothing had been.
    fn play(&self) {
        self.play_in(&PHASES);
    }

    fn play_in(&self, phases: &[Phase]) {
        let folder = TempDir::new();
        let Self { ranks, split, .. } = self;
        // The same command goes on with its run.
        let words = format!("{MODEL} {FOR_EVER} {split} -n {ranks} --run-dir run");
        for (start, phase) in (0..).zip(phases.iter().copied()) {
            let training = Started::new(&folder, &words);
            let victim = (start + ranks - 1) % ranks;
            println!("{split}: rank {victim} is killed in phase {phase:?}");
            kill(&folder, victim, phase, &training);
            assert_ended_by(&ended(training), victim);
        }
        self.goes_on(&folder);
    }

    /// The run goes on as it was, and a copy of it on other ranks.
    fn goes_on(&self, folder: &TempDir) {
        let Self { ranks, split, other_ranks, other } = self;
        let steps = done(folder, "run") + 10;
        copy(folder, "run", "elsewhere");
        let resume = |run_dir: &str, ranks: u32, words: &str| {
            let words = format!("--resume {run_dir} -n {ranks} train.steps={steps} {words}");
            run(folder, &words).ok();
            metrics(folder, run_dir)
        };
        let words = format!("{MODEL} train.steps={steps} {split} -n {ranks} --run-dir whole");
        run(folder, &words).ok();
        let whole = metrics(folder, "whole");
        assert_same(&resume("run", *ranks, ""), &whole, steps);
        let elsewhere = resume("elsewhere", *other_ranks, other);
        assert_near(&elsewhere, &with_validations_of(whole, &elsewhere));
    }
}

/// A run that was killed between a step and its validation, and kept the step, has no validation.
fn with_validations_of(mut whole: Metrics, run: &Metrics) -> Metrics {
    whole.validations.retain(|step, _| run.validations.contains_key(step));
    whole
}

/// Waits for the phase, and kills the rank.
fn kill(folder: &TempDir, victim: u32, phase: Phase, training: &Started) {
    let rank = || processes(folder).into_iter().find(|(_, rank)| *rank == Some(victim));
    quickly("the rank", || rank().is_some());
    let begun = done(folder, "run");
    match phase {
        Phase::Beginning => {}
        Phase::Steps => until_done(folder, "run", begun + 20),
        Phase::Checkpoint => {
            until_done(folder, "run", begun + 5);
            let writes = |name: &String| name.ends_with(".partial");
            quickly("a checkpoint", || checkpoints(folder, "run").iter().any(writes));
        }
        Phase::Validation => {
            quickly("a validation", || {
                let steps = done(folder, "run");
                steps > begun && steps.is_multiple_of(7)
            });
        }
        Phase::Disk => {
            until_done(folder, "run", begun + 3);
            let file = folder.path().join(format!("run/offloaded/moments-{victim}"));
            let written = || std::fs::metadata(&file).and_then(|about| about.modified()).ok();
            let before = written();
            quickly("what is written", || written() != before);
        }
    }
    let Some((pid, _)) = rank() else { panic!("{}", training.out()) };
    send(pid, KILL);
}

/// Waits without a pause: what is waited for may not last.
fn quickly(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Its end, which must come.
fn ended(mut training: Started) -> CommandOutput {
    quickly("the end", || training.child.try_wait().unwrap().is_some());
    training.over()
}

/// The end says which rank was killed, where and how.
fn assert_ended_by(run: &CommandOutput, victim: u32) {
    assert_eq!(run.code, Some(128 + KILL), "{run:?}");
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = host.split('.').next().unwrap();
    let sentence = format!("rank {victim} on {host} failed first: signal 9 (KILL)");
    assert!(run.err.contains(&sentence), "{sentence}: {}", run.err);
}

/// A copy of a run.
fn copy(folder: &TempDir, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_killed_rank_of_a_tensor_group_is_named_and_nothing_is_lost() {
    Case { ranks: 2, split: "tp=2", other_ranks: 1, other: "tp=1" }.play();
}

#[test]
fn a_killed_rank_of_a_ring_is_named_and_nothing_is_lost() {
    Case { ranks: 2, split: "cp=2", other_ranks: 4, other: "cp=2 tp=2" }.play();
}

#[test]
fn a_killed_stage_is_named_and_nothing_is_lost() {
    let schedule = "pp=2 parallel.schedule=zero-bubble micro_batch=2";
    Case { ranks: 2, split: schedule, other_ranks: 1, other: "pp=1" }.play();
}

#[test]
fn a_killed_rank_that_has_a_share_of_all_state_is_named_and_nothing_is_lost() {
    Case { ranks: 4, split: "zero=3", other_ranks: 2, other: "tp=2 zero=0" }.play();
}

#[test]
fn a_killed_rank_of_three_axes_is_named_and_nothing_is_lost() {
    Case {
        ranks: 8,
        split: "dp=2 tp=2 pp=2 zero=1",
        other_ranks: 2,
        other: "dp=2 tp=1 pp=1 zero=3",
    }
    .play();
}

#[test]
fn a_killed_rank_that_has_state_on_disk_is_named_and_nothing_is_lost() {
    Case {
        ranks: 4,
        split: "zero=3 tiles=2 offload.optimizer=disk offload.parameters=disk",
        other_ranks: 2,
        other: "tp=2 zero=0 tiles=1 offload.parameters=device",
    }
    .play_in(&PHASES_ON_DISK);
}

#[test]
fn a_damaged_share_of_a_split_is_passed_over() {
    let folder = TempDir::new();
    let words = format!("{MODEL} train.steps=8 tp=2 pp=2 -n 4");
    run(&folder, &format!("{words} --run-dir run")).ok();
    run(&folder, &format!("{words} --run-dir whole")).ok();
    let newest = folder.path().join("run/checkpoints/step-00000008");
    flip(&newest.join("rank-00003.safetensors"));
    let out = run(&folder, "--resume run -n 2 tp=2 pp=1").ok();
    assert!(out.contains("step-00000008 is damaged and passed over: "), "{out}");
    assert!(out.contains("goes on after step 6 of "), "{out}");
    let found = metrics(&folder, "run");
    assert_near(&found, &with_validations_of(metrics(&folder, "whole"), &found));
}
