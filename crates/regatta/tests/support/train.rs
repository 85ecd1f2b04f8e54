//! Runs of `regatta train`, and what they left.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::job::wait_until;
use super::metrics::{Metrics, done_of, metrics_of};
use super::{CommandOutput, TempDir, clean_env};

/// A model that is trained in no time. The rate falls until a step that does not depend on how many
/// there are, so that a longer run begins as a shorter one.
pub const TINY: &str = "layers=1 heads=2 width=16 context=16 batch=24 threads=1 warmup=5 \
                        decay_steps=50 eval_every=10 eval_batches=1 checkpoint.every=5";

/// More steps than any test waits for.
pub const FOR_EVER: &str = "train.steps=1000000";

/// `regatta` with the words of a line, in a folder. It hears Ctrl-C even if whoever tests does not.
pub fn regatta(folder: &TempDir, words: &str) -> Command {
    let mut command = Command::new("env");
    clean_env(&mut command).env("TMPDIR", folder.path()).current_dir(folder.path());
    command.env("CUDA_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_regatta")]);
    command.args(words.split_whitespace());
    command
}

/// `regatta train` of a tiny model to its end.
pub fn tiny(folder: &TempDir, words: &str) -> CommandOutput {
    run(folder, &format!("{TINY} {words}"))
}

/// `regatta train` to its end.
pub fn run(folder: &TempDir, words: &str) -> CommandOutput {
    regatta(folder, &format!("train {words}")).output().unwrap().into()
}

/// A training that is under way; it does not outlive a test that failed.
pub struct Started {
    pub child: Child,
    /// What it says goes to files, so that it never waits for a reader.
    said: [PathBuf; 2],
}

impl Started {
    /// `regatta train` with the words of a line.
    pub fn new(folder: &TempDir, words: &str) -> Self {
        Self::of(folder, &mut regatta(folder, &format!("train {words}")))
    }

    /// Any command that trains.
    pub fn of(folder: &TempDir, command: &mut Command) -> Self {
        let said = ["said.out", "said.err"].map(|name| folder.path().join(name));
        let [out, err] = said.each_ref().map(|path| File::create(path).unwrap());
        let child = command.stdout(out).stderr(err).spawn().unwrap();
        Self { child, said }
    }

    /// What it printed so far.
    pub fn out(&self) -> String {
        std::fs::read_to_string(&self.said[0]).unwrap()
    }

    /// Its end.
    pub fn over(mut self) -> CommandOutput {
        let code = self.child.wait().unwrap().code();
        let [out, err] =
            self.said.each_ref().map(|path| std::fs::read_to_string(path).unwrap_or_default());
        CommandOutput { code, out, err }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The metrics of a run.
pub fn metrics(folder: &TempDir, run: &str) -> Metrics {
    metrics_of(&folder.path().join(run).join("metrics.jsonl"))
}

/// How many steps of a run are done by now.
pub fn done(folder: &TempDir, run: &str) -> u64 {
    done_of(&folder.path().join(run).join("metrics.jsonl"))
}

/// Waits until so many steps are done.
pub fn until_done(folder: &TempDir, run: &str, steps: u64) {
    wait_until(&format!("step {steps} of {run}"), || done(folder, run) >= steps);
}

/// The processes that work in a folder, with their ranks if they are ranks.
pub fn processes(folder: &TempDir) -> Vec<(u32, Option<u32>)> {
    let rank = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let words = environment.split(|byte| *byte == 0);
        let text = words.filter_map(|word| word.strip_prefix(b"RANK=")).next()?;
        std::str::from_utf8(text).ok()?.parse().ok()
    };
    let here = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.path())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(here).map(|pid| (pid, rank(pid))).collect()
}

/// Sends a signal to a process, unless it is over already.
pub fn send(pid: u32, signal: i32) {
    let words = [format!("-{signal}"), pid.to_string()];
    Command::new("kill").args(words).stderr(Stdio::null()).status().unwrap();
}

/// Changes bits in the middle of a file; done again it does not bring them back.
pub fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = bytes[middle].wrapping_add(1);
    std::fs::write(path, bytes).unwrap();
}

/// The names of the checkpoints of a run, the oldest first.
pub fn checkpoints(folder: &TempDir, run: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path().join(run).join("checkpoints")) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}
