//! Runs of `regatta train`, their metrics and their checkpoints.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::job::wait_until;
use super::metrics::{RunMetrics, last_step_in, read_metrics};
use super::{CommandOutput, TempDir, clean_env};

/// A tiny model. `decay_steps` is set, so that the learning rate does not depend on the number of
/// steps and a shorter run is a prefix of a longer one.
pub const TINY: &str = "num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 threads=1 \
                        warmup_steps=5 decay_steps=50 eval_interval=10 eval_batches=1 \
                        checkpoint.interval=5";

/// More steps than any test waits for.
pub const ENDLESS: &str = "train.steps=1000000";

/// `regatta` with space-separated arguments, in a folder. SIGINT has its default action even if the
/// test runner ignores it.
pub fn regatta_command(folder: &TempDir, words: &str) -> Command {
    let mut command = Command::new("env");
    clean_env(&mut command).env("TMPDIR", folder.path()).current_dir(folder.path());
    command.env("CUDA_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_regatta")]);
    command.args(words.split_whitespace());
    command
}

/// Trains the tiny model to the end.
pub fn train_tiny(folder: &TempDir, words: &str) -> CommandOutput {
    run(folder, &format!("{TINY} {words}"))
}

/// Runs `regatta train` to the end.
pub fn run(folder: &TempDir, words: &str) -> CommandOutput {
    regatta_command(folder, &format!("train {words}")).output().unwrap().into()
}

/// A running `regatta train`, killed on drop.
pub struct TrainProcess {
    pub child: Child,
    /// Files for stdout and stderr, because a pipe could fill up and block it.
    output: [PathBuf; 2],
}

impl TrainProcess {
    /// Starts `regatta train` with space-separated arguments.
    pub fn spawn(folder: &TempDir, words: &str) -> Self {
        Self::spawn_command(folder, &mut regatta_command(folder, &format!("train {words}")))
    }

    /// Starts any command that trains.
    pub fn spawn_command(folder: &TempDir, command: &mut Command) -> Self {
        let output = ["train.out", "train.err"].map(|name| folder.path().join(name));
        let [out, err] = output.each_ref().map(|path| File::create(path).unwrap());
        let child = command.stdout(out).stderr(err).spawn().unwrap();
        Self { child, output }
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.output[0]).unwrap()
    }

    /// Waits for the end.
    pub fn wait(mut self) -> CommandOutput {
        let code = self.child.wait().unwrap().code();
        let [out, err] =
            self.output.each_ref().map(|path| std::fs::read_to_string(path).unwrap_or_default());
        CommandOutput { code, out, err }
    }
}

impl Drop for TrainProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The metrics of a run.
pub fn metrics(folder: &TempDir, run: &str) -> RunMetrics {
    read_metrics(&folder.path().join(run).join("metrics.jsonl"))
}

/// The last recorded step of a run.
pub fn last_step(folder: &TempDir, run: &str) -> u64 {
    last_step_in(&folder.path().join(run).join("metrics.jsonl"))
}

/// Waits until a step of a run is recorded.
pub fn wait_for_step(folder: &TempDir, run: &str, step: u64) {
    wait_until(&format!("step {step} of {run}"), || last_step(folder, run) >= step);
}

/// The processes with a working directory, each with its rank if it is one.
pub fn processes(folder: &TempDir) -> Vec<(u32, Option<u32>)> {
    let rank = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let words = environment.split(|byte| *byte == 0);
        let text = words.filter_map(|word| word.strip_prefix(b"RANK=")).next()?;
        std::str::from_utf8(text).ok()?.parse().ok()
    };
    let is_in_folder = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.path())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_in_folder).map(|pid| (pid, rank(pid))).collect()
}

/// The PID of a rank, if it runs.
pub fn pid_of_rank(folder: &TempDir, rank: u32) -> Option<u32> {
    processes(folder).into_iter().find(|(_, r)| *r == Some(rank)).map(|(pid, _)| pid)
}

/// Sends a signal to a process that may have exited.
pub fn send_signal_to(pid: u32, signal: i32) {
    let words = [format!("-{signal}"), pid.to_string()];
    Command::new("kill").args(words).stderr(Stdio::null()).status().unwrap();
}

/// Corrupts a byte in the middle of a file. Repeating it does not restore the byte.
pub fn corrupt(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = bytes[middle].wrapping_add(1);
    std::fs::write(path, bytes).unwrap();
}

/// The names of a run's checkpoints, oldest first.
pub fn checkpoints(folder: &TempDir, run: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path().join(run).join("checkpoints")) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}
