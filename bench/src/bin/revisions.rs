//! Two binaries of `regatta`, such as those of two commits, alternating on this machine: time of a launch, of a
//! training step on CPUs, and of all-reduces. Prints the ratio of their medians, with the quartiles of both.
//!
//! Arguments: the paths of the older and of the newer binary, and the number of rounds, 15 by default.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use regatta_benchmarks::{
    Contender, RunTimes, TempDir, first_row, interleave, number_argument, report, stdout_of,
};
use regatta_model::run_folder::RunEvent;
use regatta_observe::read::Run;

const ROUNDS: usize = 15;

/// First steps of a training, which are not counted.
const WARM_UP_STEPS: u64 = 20;

/// A case: its name, its arguments, and the time that its run folder records.
type Case = (&'static str, &'static str, fn(&Path, Duration) -> Result<Duration>);

const CASES: [Case; 5] = [
    ("launch of two ranks", "launch -n 2 --run-dir RUN -- true", |_, elapsed| Ok(elapsed)),
    (
        "training step",
        "train --run-dir RUN train.steps=60 eval_interval=0 checkpoint.interval=0",
        |folder, _| time_of_step(folder),
    ),
    (
        "all-reduce of 8 B",
        "bench all-reduce -b 8 -e 8 -c 0 -n 20000 -w 1000 --backend host --ranks 2 --run-dir RUN",
        |folder, _| time_of_call(folder),
    ),
    (
        "all-reduce of 32 KiB",
        "bench all-reduce -b 32K -e 32K -c 0 -n 5000 -w 500 --backend host --ranks 2 --run-dir RUN",
        |folder, _| time_of_call(folder),
    ),
    (
        "all-reduce of 16 MiB",
        "bench all-reduce -b 16M -e 16M -c 0 -n 50 -w 10 --backend host --ranks 2 --run-dir RUN",
        |folder, _| time_of_call(folder),
    ),
];

fn main() -> Result<()> {
    let [older, newer] = [1, 2].map(|at| std::env::args_os().nth(at).map(PathBuf::from));
    let (Some(older), Some(newer)) = (older, newer) else {
        bail!("usage: revisions OLDER NEWER [ROUNDS], with the paths of two binaries");
    };
    let (rounds, dir) = (number_argument(3, ROUNDS)?, TempDir::new()?);
    let folder = dir.path().join("run");
    for (name, arguments, time) in CASES {
        let mut contenders = [&newer, &older].map(|binary| Contender {
            every: 1,
            work: Box::new(|| run(binary, &folder, arguments, time)),
        });
        // A warm-up round, so that all files are in the page cache.
        interleave(&mut contenders, 1)?;
        let times = interleave(&mut contenders, rounds)?;
        report(name, times[0], &[("the older binary", times[1])])?;
    }
    Ok(())
}

/// One run in a new run folder.
fn run(
    binary: &Path,
    folder: &Path,
    arguments: &str,
    time: fn(&Path, Duration) -> Result<Duration>,
) -> Result<Duration> {
    let mut command = Command::new(binary);
    let words = arguments
        .split(' ')
        .map(|word| if word == "RUN" { folder.as_ref() } else { word.as_ref() });
    let start = Instant::now();
    stdout_of(command.args::<_, &std::ffi::OsStr>(words))?;
    let time = time(folder, start.elapsed())?;
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok(time)
}

/// The time of a call that `regatta bench` measured.
fn time_of_call(folder: &Path) -> Result<Duration> {
    let time =
        first_row(folder)?.out_of_place.as_ref().and_then(|one| one.time_us).context("no time")?;
    Ok(Duration::from_secs_f64(time / 1e6))
}

/// The median of the steps after those that warm up.
fn time_of_step(folder: &Path) -> Result<Duration> {
    let update = Run::open(folder)?.follow().poll();
    let times: Vec<Duration> = update
        .records
        .into_iter()
        .filter_map(|found| match found.record.event {
            RunEvent::Step(step) if step.step > WARM_UP_STEPS => {
                Some(Duration::from_secs_f64(step.seconds.step))
            }
            _ => None,
        })
        .collect();
    ensure!(!times.is_empty(), "{}: no steps", folder.display());
    Ok(RunTimes::of(times).median)
}
