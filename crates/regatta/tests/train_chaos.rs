//! Training under seeded random faults: the metrics of every step are bitwise identical to those of an
//! undisturbed run, with any parallel layout. If the layout changes on resume, the summation order
//! changes too, and the metrics are identical up to rounding.
//!
//! `REGATTA_CHAOS_CASES` is the number of runs and `REGATTA_CHAOS_SEED` the first seed; `cargo xtask
//! chaos --train` sets them.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use libc::{SIGINT, SIGKILL, SIGTERM};
use regatta_testbed::{Random, wait_until};
use support::TempDir;
use support::metrics::{RunMetrics, assert_close, assert_identical};
use support::process::{Process, processes, signal_if_alive};
use support::train::{TINY, checkpoints, corrupt, last_step, metrics, spawn, tiny_run};

/// Default number of runs.
const DEFAULT_CASES: u64 = 6;

/// Ranks and parallel layouts. All keys are set, because a run may resume with any other layout.
const LAYOUTS: [ParallelLayout; 14] = [
    (1, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=0"),
    (3, "tp=1 cp=1 pp=1 zero=0"),
    (6, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=2 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=2 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=2 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=1"),
    (3, "tp=1 cp=1 pp=1 zero=2"),
    (4, "tp=1 cp=1 pp=1 zero=3"),
    (4, "tp=2 cp=1 pp=2 zero=0"),
    (4, "tp=2 cp=2 pp=1 zero=0"),
    (4, "tp=1 cp=2 pp=1 zero=3"),
    (8, "tp=2 cp=1 pp=2 zero=1"),
];

/// Number of ranks, and configuration keys.
type ParallelLayout = (u32, &'static str);

/// Steps of a run: it takes about as long as the longest delay before a fault.
const STEPS: u64 = 300;

/// Two layers for two stages. At twice the learning rate, 300 steps amplify rounding differences of
/// 1e-9 to 1e-5.
const MODEL: &str = "num_layers=2 optimizer.lr=5e-4";

/// A fault.
#[derive(Debug, Clone, Copy)]
enum TrainFault {
    /// Kill any process: the parent, the launcher or a rank.
    Kill,
    /// Kill two processes.
    KillTwo,
    /// Send a signal to the parent.
    Signal(i32),
}

#[test]
fn metrics_under_faults_are_identical_to_an_undisturbed_run() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = variable("REGATTA_CHAOS_SEED").unwrap_or(1);
    let cases = variable("REGATTA_CHAOS_CASES").unwrap_or(DEFAULT_CASES);
    let folder = TempDir::new();
    let mut references = BTreeMap::new();
    for seed in first..first + cases {
        println!("reproduce: cargo xtask chaos --train --cases 1 --seed {seed}");
        let mut random = Random::new(seed);
        let layout = random.pick(&LAYOUTS);
        let reference = references.entry(layout).or_insert_with(|| reference(&folder, layout));
        // A third of the runs change the layout on each resume.
        let changes_layout = random.within(0, 2) == 0;
        run_with_faults(&folder, &mut random, |random| {
            if changes_layout { random.pick(&LAYOUTS) } else { layout }
        });
        let found = metrics(&folder, "run");
        if changes_layout {
            assert_close(&found, &reference.with_validations_of(&found));
        } else {
            assert_identical(&found, reference, STEPS);
        }
        std::fs::remove_dir_all(folder.join("run")).unwrap();
    }
}

/// The metrics of an undisturbed run.
fn reference(folder: &TempDir, (ranks, layout): ParallelLayout) -> RunMetrics {
    let run = format!("reference-{ranks}-{}", layout.replace([' ', '='], "-"));
    tiny_run(folder, &run, &format!("{MODEL} train.steps={STEPS} {layout} -n {ranks}"))
}

/// Runs the training with one to four faults, then to its end.
fn run_with_faults(
    folder: &TempDir,
    random: &mut Random,
    next_layout: impl Fn(&mut Random) -> ParallelLayout,
) {
    let [int, term] = [SIGINT, SIGTERM].map(TrainFault::Signal);
    let faults = [TrainFault::Kill, TrainFault::Kill, TrainFault::KillTwo, int, term];
    for _ in 0..random.within(1, 4) {
        let (ranks, layout) = next_layout(random);
        let training = start_or_resume(folder, (ranks, layout));
        let delay = random.within(0, 800);
        let fault = random.pick(&faults);
        std::thread::sleep(Duration::from_millis(delay.into()));
        let step = last_step(folder, "run");
        println!("  {ranks} ranks, {layout}, {fault:?} after {delay} ms and {step} steps");
        match fault {
            TrainFault::Kill => kill_any(folder, random),
            TrainFault::KillTwo => (0..2).for_each(|_| kill_any(folder, random)),
            TrainFault::Signal(signal) => signal_if_alive(training.pid(), signal),
        }
        training.wait();
        wait_until("the exit of all processes", || processes(folder).is_empty());
        maybe_corrupt_checkpoint(folder, random);
    }
    start_or_resume(folder, next_layout(random)).wait().assert_code(0);
}

/// Resumes the run, or starts it if it has no configuration yet.
fn start_or_resume(folder: &TempDir, (ranks, layout): ParallelLayout) -> Process {
    let run = folder.join("run");
    if run.join("config.toml").exists() {
        return spawn(folder, &format!("--resume run {layout} -n {ranks}"));
    }
    let _ = std::fs::remove_dir_all(run);
    let words = format!("{TINY} {MODEL} train.steps={STEPS} {layout} -n {ranks} --run-dir run");
    spawn(folder, &words)
}

fn kill_any(folder: &TempDir, random: &mut Random) {
    let all = processes(folder);
    if !all.is_empty() {
        signal_if_alive(random.pick(&all).0, SIGKILL);
    }
}

/// With a probability of 1/3, corrupts the newest checkpoint if there is an older one.
fn maybe_corrupt_checkpoint(folder: &TempDir, random: &mut Random) {
    let all = checkpoints(folder, "run");
    let complete: Vec<&String> = all.iter().filter(|name| !name.contains('.')).collect();
    if complete.len() < 2 || random.within(0, 2) > 0 {
        return;
    }
    let file = folder.join("run/checkpoints").join(complete[complete.len() - 1]);
    println!("  corrupting {}", file.display());
    corrupt(&file.join("rank-00000.safetensors"));
}
