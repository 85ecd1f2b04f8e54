//! `regatta train` with parallel layouts, with a rank killed in each phase: the error names the rank,
//! and the resumed run is bitwise identical to an uninterrupted one. With another layout, it is
//! identical up to rounding.

use std::time::Duration;

use libc::SIGKILL;
use regatta_testbed::{poll_until, sample_cases};

use crate::support::metrics::{assert_close, assert_identical};
use crate::support::process::{Process, pid_of_rank, signal_if_alive};
use crate::support::train::{
    ENDLESS, checkpoints, copy, corrupt, last_step, metrics, run, spawn, wait_for_step,
};
use crate::support::{CommandOutput, TempDir};

/// Two layers and heads, for pp=2 and tp=2. A validation takes as long as several steps, so that a
/// rank can be killed in it.
const MODEL: &str = "family=gpt2 bias=false tie_embeddings=auto precision=f32 num_layers=2 num_heads=2 hidden_size=16 seq_len=16 batch=8 threads=1 \
                     warmup_steps=5 decay_steps=50 eval_interval=7 eval_batches=20 \
                     checkpoint.interval=2";

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

/// In `cargo xtask accept parallel-layouts` all, otherwise the first and the third.
const PHASES: [Phase; 4] = [Phase::Steps, Phase::Start, Phase::Checkpoint, Phase::Validation];

const PHASES_WITH_OFFLOAD: [Phase; 6] = [
    Phase::Offload,
    Phase::Start,
    Phase::Steps,
    Phase::Offload,
    Phase::Checkpoint,
    Phase::Validation,
];

/// Number of ranks, and parallel layout.
type RanksAndLayout = (u32, &'static str);

/// Kills another rank in each phase and resumes the run each time. Then resumes it with its layout, and
/// a copy of it with the other layout, and compares both with an uninterrupted run.
fn assert_resumes_after_kills(
    (ranks, layout): RanksAndLayout,
    (other_ranks, other_layout): RanksAndLayout,
    phases: &[Phase],
) {
    let folder = TempDir::new();
    // Repeating the command resumes the run.
    let words = format!("{MODEL} {ENDLESS} {layout} -n {ranks} --run-dir run");
    for (start, phase) in (0..).zip(sample_cases(phases.iter().copied(), 2)) {
        let mut training = spawn(&folder, &words);
        let victim = (start + ranks - 1) % ranks;
        println!("{layout}: killing rank {victim} in phase {phase:?}");
        kill(&folder, victim, phase, &training);
        spin_until("the exit", || training.has_exited());
        assert_reports_killed_rank(training.wait(), victim);
    }
    let steps = last_step(&folder, "run") + 10;
    copy(&folder, "run", "other");
    let train = |run_dir: &str, words: &str| {
        run(&folder, &format!("{words} train.steps={steps}")).ok();
        metrics(&folder, run_dir)
    };
    let full = train("full", &format!("{MODEL} {layout} -n {ranks} --run-dir full"));
    assert_identical(&train("run", &format!("--resume run -n {ranks}")), &full, steps);
    let other = train("other", &format!("--resume other -n {other_ranks} {other_layout}"));
    assert_close(&other, &full.with_validations_of(&other));
}

/// Waits for the phase, and kills the rank.
fn kill(folder: &TempDir, victim: u32, phase: Phase, training: &Process) {
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
        Phase::Validation => spin_until("a validation", || {
            let step = last_step(folder, "run");
            step > first && step.is_multiple_of(7)
        }),
        Phase::Offload => {
            wait_for_step(folder, "run", first + 3);
            let file = folder.join(format!("run/offloaded/moments-{victim}"));
            let modified = || std::fs::metadata(&file).and_then(|data| data.modified()).ok();
            let before = modified();
            spin_until("a write", || modified() != before);
        }
    }
    let Some(pid) = pid_of_rank(folder, victim) else { panic!("{}", training.stdout()) };
    signal_if_alive(pid, SIGKILL);
}

/// Polls at a short interval, because the condition may hold only briefly.
fn spin_until(what: &str, holds: impl FnMut() -> bool) {
    poll_until(Duration::from_millis(1), what, holds);
}

/// Asserts that the error names the killed rank, its host and the signal.
fn assert_reports_killed_rank(run: CommandOutput, victim: u32) {
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = host.split('.').next().unwrap();
    let error = format!("rank {victim} on {host} failed first: signal 9 (KILL)");
    run.assert_code(128 + SIGKILL).assert_stderr(&error);
}

#[test]
fn tensor_parallel_run_resumes_bitwise_after_a_killed_rank() {
    assert_resumes_after_kills((2, "tp=2"), (1, "tp=1"), &PHASES);
}

#[test]
fn context_parallel_run_resumes_bitwise_after_a_killed_rank() {
    assert_resumes_after_kills((2, "cp=2"), (4, "cp=2 tp=2"), &PHASES);
}

#[test]
fn pipeline_parallel_run_resumes_bitwise_after_a_killed_rank() {
    let schedule = "pp=2 parallel.schedule=zero-bubble micro_batch=2";
    assert_resumes_after_kills((2, schedule), (1, "pp=1"), &PHASES);
}

#[test]
fn zero_3_run_resumes_bitwise_after_a_killed_rank() {
    assert_resumes_after_kills((4, "zero=3"), (2, "tp=2 zero=0"), &PHASES);
}

#[test]
fn three_dimensional_run_resumes_bitwise_after_a_killed_rank() {
    let other = (2, "dp=2 tp=1 pp=1 zero=3");
    assert_resumes_after_kills((8, "dp=2 tp=2 pp=2 zero=1"), other, &PHASES);
}

#[test]
fn offloaded_run_resumes_bitwise_after_a_killed_rank() {
    let layout = "zero=3 tiles=2 offload.optimizer=disk offload.parameters=disk";
    let other = (2, "tp=2 zero=0 tiles=1 offload.parameters=device");
    assert_resumes_after_kills((4, layout), other, &PHASES_WITH_OFFLOAD);
}

#[test]
fn resume_skips_a_checkpoint_with_a_corrupt_shard() {
    let folder = TempDir::new();
    let words = format!("{MODEL} train.steps=8 tp=2 pp=2 -n 4");
    run(&folder, &format!("{words} --run-dir run")).ok();
    run(&folder, &format!("{words} --run-dir full")).ok();
    corrupt(&folder.join("run/checkpoints/step-00000008/rank-00003.safetensors"));
    let skipped = "skipped damaged checkpoint run/checkpoints/step-00000008: ";
    run(&folder, "--resume run -n 2 tp=2 pp=1").assert_ok([skipped, "resumed after step 6 from "]);
    let found = metrics(&folder, "run");
    assert_close(&found, &metrics(&folder, "full").with_validations_of(&found));
}
