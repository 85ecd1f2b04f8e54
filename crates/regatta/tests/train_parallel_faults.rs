//! `regatta train` with parallel layouts, with a rank killed in each phase: the error names the rank,
//! and the resumed run is bitwise identical to an uninterrupted one. With another layout, it is
//! identical up to rounding.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use support::metrics::{RunMetrics, assert_close, assert_identical};
use support::train::{
    ENDLESS, TrainProcess, checkpoints, corrupt, last_step, metrics, pid_of_rank, run,
    send_signal_to, wait_for_step,
};
use support::{CommandOutput, TempDir};

/// Two layers and heads, for pp=2 and tp=2. A validation takes as long as several steps, so that a
/// rank can be killed in it.
const MODEL: &str = "num_layers=2 num_heads=2 hidden_size=16 seq_len=16 batch=8 threads=1 \
                     warmup_steps=5 decay_steps=50 eval_interval=7 eval_batches=20 \
                     checkpoint.interval=2";

const SIGKILL: i32 = 9;

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// When a rank is killed.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// As soon as the process runs.
    Start,
    /// Between checkpoints.
    Steps,
    /// During the write of a checkpoint.
    Checkpoint,
    /// During a validation.
    Validation,
    /// During disk I/O of offloaded state.
    Offload,
}

const PHASES: [Phase; 4] = [Phase::Start, Phase::Steps, Phase::Checkpoint, Phase::Validation];

const PHASES_WITH_OFFLOAD: [Phase; 6] = [
    Phase::Offload,
    Phase::Start,
    Phase::Steps,
    Phase::Offload,
    Phase::Checkpoint,
    Phase::Validation,
];

/// A parallel layout, and another one to resume with.
struct FaultCase {
    ranks: u32,
    layout: &'static str,
    other_ranks: u32,
    other_layout: &'static str,
}

impl FaultCase {
    /// Kills another rank in each phase and resumes the run each time, then compares it with an
    /// uninterrupted one.
    fn run(&self) {
        self.run_phases(&PHASES);
    }

    fn run_phases(&self, phases: &[Phase]) {
        let folder = TempDir::new();
        let Self { ranks, layout, .. } = self;
        // Repeating the command resumes the run.
        let words = format!("{MODEL} {ENDLESS} {layout} -n {ranks} --run-dir run");
        for (start, phase) in (0..).zip(phases.iter().copied()) {
            let training = TrainProcess::spawn(&folder, &words);
            let victim = (start + ranks - 1) % ranks;
            println!("{layout}: killing rank {victim} in phase {phase:?}");
            kill(&folder, victim, phase, &training);
            assert_reports_killed_rank(&wait_for_exit(training), victim);
        }
        self.assert_resumes(&folder);
    }

    /// Resumes the run with its layout, and a copy of it with the other layout.
    fn assert_resumes(&self, folder: &TempDir) {
        let Self { ranks, layout, other_ranks, other_layout } = self;
        let steps = last_step(folder, "run") + 10;
        copy(folder, "run", "other");
        let resume = |run_dir: &str, ranks: u32, words: &str| {
            let words = format!("--resume {run_dir} -n {ranks} train.steps={steps} {words}");
            run(folder, &words).ok();
            metrics(folder, run_dir)
        };
        let words = format!("{MODEL} train.steps={steps} {layout} -n {ranks} --run-dir full");
        run(folder, &words).ok();
        let full = metrics(folder, "full");
        assert_identical(&resume("run", *ranks, ""), &full, steps);
        let other = resume("other", *other_ranks, other_layout);
        assert_close(&other, &with_validations_of(full, &other));
    }
}

/// Drops validations that `run` does not have: one is lost if the run is killed between a checkpoint
/// and the validation of its step.
fn with_validations_of(mut full: RunMetrics, run: &RunMetrics) -> RunMetrics {
    full.val_losses.retain(|step, _| run.val_losses.contains_key(step));
    full
}

/// Waits for the phase, and kills the rank.
fn kill(folder: &TempDir, victim: u32, phase: Phase, training: &TrainProcess) {
    spin_until("the rank", || pid_of_rank(folder, victim).is_some());
    let first = last_step(folder, "run");
    match phase {
        Phase::Start => {}
        Phase::Steps => wait_for_step(folder, "run", first + 20),
        Phase::Checkpoint => {
            wait_for_step(folder, "run", first + 5);
            let is_partial = |name: &String| name.ends_with(".partial");
            spin_until("a checkpoint", || checkpoints(folder, "run").iter().any(is_partial));
        }
        Phase::Validation => {
            spin_until("a validation", || {
                let step = last_step(folder, "run");
                step > first && step.is_multiple_of(7)
            });
        }
        Phase::Offload => {
            wait_for_step(folder, "run", first + 3);
            let file = folder.path().join(format!("run/offloaded/moments-{victim}"));
            let modified = || std::fs::metadata(&file).and_then(|data| data.modified()).ok();
            let before = modified();
            spin_until("a write", || modified() != before);
        }
    }
    let Some(pid) = pid_of_rank(folder, victim) else { panic!("{}", training.stdout()) };
    send_signal_to(pid, SIGKILL);
}

/// Polls at a short interval, because the condition may hold only briefly.
fn spin_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the exit, with a timeout.
fn wait_for_exit(mut training: TrainProcess) -> CommandOutput {
    spin_until("the exit", || training.child.try_wait().unwrap().is_some());
    training.wait()
}

/// Asserts that the error names the killed rank, its host and the signal.
fn assert_reports_killed_rank(run: &CommandOutput, victim: u32) {
    assert_eq!(run.code, Some(128 + SIGKILL), "{run:?}");
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = host.split('.').next().unwrap();
    let error = format!("rank {victim} on {host} failed first: signal 9 (KILL)");
    assert!(run.err.contains(&error), "{error}: {}", run.err);
}

/// Copies a run folder.
fn copy(folder: &TempDir, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
}

#[test]
fn tensor_parallel_run_resumes_bitwise_after_a_killed_rank() {
    FaultCase { ranks: 2, layout: "tp=2", other_ranks: 1, other_layout: "tp=1" }.run();
}

#[test]
fn context_parallel_run_resumes_bitwise_after_a_killed_rank() {
    FaultCase { ranks: 2, layout: "cp=2", other_ranks: 4, other_layout: "cp=2 tp=2" }.run();
}

#[test]
fn pipeline_parallel_run_resumes_bitwise_after_a_killed_rank() {
    let schedule = "pp=2 parallel.schedule=zero-bubble micro_batch=2";
    FaultCase { ranks: 2, layout: schedule, other_ranks: 1, other_layout: "pp=1" }.run();
}

#[test]
fn zero_3_run_resumes_bitwise_after_a_killed_rank() {
    FaultCase { ranks: 4, layout: "zero=3", other_ranks: 2, other_layout: "tp=2 zero=0" }.run();
}

#[test]
fn three_dimensional_run_resumes_bitwise_after_a_killed_rank() {
    FaultCase {
        ranks: 8,
        layout: "dp=2 tp=2 pp=2 zero=1",
        other_ranks: 2,
        other_layout: "dp=2 tp=1 pp=1 zero=3",
    }
    .run();
}

#[test]
fn offloaded_run_resumes_bitwise_after_a_killed_rank() {
    FaultCase {
        ranks: 4,
        layout: "zero=3 tiles=2 offload.optimizer=disk offload.parameters=disk",
        other_ranks: 2,
        other_layout: "tp=2 zero=0 tiles=1 offload.parameters=device",
    }
    .run_phases(&PHASES_WITH_OFFLOAD);
}

#[test]
fn resume_skips_a_checkpoint_with_a_corrupt_shard() {
    let folder = TempDir::new();
    let words = format!("{MODEL} train.steps=8 tp=2 pp=2 -n 4");
    run(&folder, &format!("{words} --run-dir run")).ok();
    run(&folder, &format!("{words} --run-dir full")).ok();
    let newest = folder.path().join("run/checkpoints/step-00000008");
    corrupt(&newest.join("rank-00003.safetensors"));
    let out = run(&folder, "--resume run -n 2 tp=2 pp=1").ok();
    assert!(out.contains("skipped damaged checkpoint run/checkpoints/step-00000008: "), "{out}");
    assert!(out.contains("resumed after step 6 from "), "{out}");
    let found = metrics(&folder, "run");
    assert_close(&found, &with_validations_of(metrics(&folder, "full"), &found));
}
