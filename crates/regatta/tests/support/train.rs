//! Runs of `regatta train`, their metrics and their checkpoints.

use std::path::Path;
use std::process::Command;

use regatta_testbed::{wait_until, write_with_mode};

use super::metrics::{RunMetrics, last_step_in, read_metrics};
use super::process::{Process, regatta_in, run_command, run_in};
use super::{CommandOutput, TempDir};

/// A tiny model, in f32 so that losses can be compared closely. `decay_steps` is set, so that the learning rate does not depend on the number of
/// steps and a shorter run is a prefix of a longer one.
pub const TINY: &str = "family=gpt2 bias=false tie_embeddings=auto precision=f32 num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 threads=1 \
                        warmup_steps=5 decay_steps=50 eval_interval=10 eval_batches=1 \
                        checkpoint.interval=5";

/// Exit code of a training that a signal stopped before its last step.
pub const STOPPED_EARLY: i32 = 75;

/// More steps than any test waits for.
pub const ENDLESS: &str = "train.steps=1000000";

/// A script for `--wrap` whose rank, once it is interrupted, takes until the file `go` exists to finish
/// its step: it is stopped. It has its own session, because the launcher continues stopped ranks.
const LONG_STEP: &str = "#!/bin/sh
hold() { kill -STOP $rank; until [ -e go ]; do sleep 0.05; done; kill -TERM $rank; kill -CONT $rank; }
trap hold INT
setsid \"$@\" &
rank=$!
code=0
while kill -0 $rank 2>/dev/null; do wait $rank; code=$?; done
exit $code
";

/// Writes the script [`LONG_STEP`] to a folder; returns the option of `regatta launch` that uses it.
pub fn long_step(folder: &Path) -> String {
    let script = folder.join("long-step");
    write_with_mode(&script, 0o755, LONG_STEP);
    format!("--wrap {}", script.display())
}

/// `regatta train` with space-separated arguments, in a folder.
pub fn train_command(folder: &TempDir, words: &str) -> Command {
    regatta_in(folder, &format!("train {words}"))
}

/// Trains the tiny model to the end.
pub fn train_tiny(folder: &TempDir, words: &str) -> CommandOutput {
    run(folder, &format!("{TINY} {words}"))
}

/// Trains the tiny model in a run folder to the end; returns the metrics.
pub fn tiny_run(folder: &TempDir, run: &str, words: &str) -> RunMetrics {
    train_tiny(folder, &format!("{words} --run-dir {run}")).ok();
    metrics(folder, run)
}

/// Runs `regatta train` to the end.
pub fn run(folder: &TempDir, words: &str) -> CommandOutput {
    run_command(&mut train_command(folder, words))
}

/// Starts `regatta train`.
pub fn spawn(folder: &TempDir, words: &str) -> Process {
    Process::spawn(folder, &mut train_command(folder, words))
}

/// The state of a run, as `regatta runs` shows it.
pub fn run_state(folder: &TempDir, run: &str) -> String {
    let shown: serde_json::Value = run_in(folder, &format!("runs show {run} --json")).json();
    shown["state"].as_str().unwrap().to_owned()
}

/// The metrics of a run.
pub fn metrics(folder: &TempDir, run: &str) -> RunMetrics {
    read_metrics(&folder.join(run).join("metrics.jsonl"))
}

/// The last recorded step of a run.
pub fn last_step(folder: &TempDir, run: &str) -> u64 {
    last_step_in(&folder.join(run).join("metrics.jsonl"))
}

/// Waits until a step of a run is recorded.
pub fn wait_for_step(folder: &TempDir, run: &str, step: u64) {
    wait_until(&format!("step {step} of {run}"), || last_step(folder, run) >= step);
}

/// Waits until a run has recorded this many more steps.
pub fn wait_for_more_steps(folder: &TempDir, run: &str, steps: u64) {
    wait_for_step(folder, run, last_step(folder, run) + steps);
}

/// Corrupts a byte in the middle of a file. Repeating it does not restore the byte.
pub fn corrupt(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = bytes[middle].wrapping_add(1);
    std::fs::write(path, bytes).unwrap();
}

/// Copies a run folder.
pub fn copy(folder: &TempDir, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
}

/// The names of a run's checkpoints, oldest first.
pub fn checkpoints(folder: &TempDir, run: &str) -> Vec<String> {
    let mut names = folder.list(format!("{run}/checkpoints"));
    names.retain(|name| name.starts_with("step-"));
    names
}
