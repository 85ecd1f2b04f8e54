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

/// Reads a time from the run folder, or takes that of the whole command.
type TimeOf = fn(&Path, Duration) -> Result<Duration>;

/// Names, arguments and times.
fn cases() -> [(String, String, TimeOf); 5] {
    let all_reduce = |size: &str, calls: u32| -> (String, String, TimeOf) {
        let options = format!("-b {size} -e {size} -c 0 -n {calls} --backend host --ranks 2");
        let arguments = format!("bench all-reduce {options} --run-dir RUN");
        (format!("all-reduce of {size}"), arguments, |folder, _| time_of_call(folder))
    };
    let training = "train --run-dir RUN train.steps=60 eval_interval=0 checkpoint.interval=0";
    [
        ("launch".into(), "launch -n 2 --run-dir RUN -- true".into(), |_, elapsed| Ok(elapsed)),
        ("training step".into(), training.into(), |folder, _| time_of_step(folder)),
        all_reduce("8", 20_000),
        all_reduce("32K", 5000),
        all_reduce("16M", 50),
    ]
}

fn main() -> Result<()> {
    let [older, newer] = [1, 2].map(|at| std::env::args_os().nth(at).map(PathBuf::from));
    let (Some(older), Some(newer)) = (older, newer) else {
        bail!("usage: revisions OLDER NEWER [ROUNDS], with the paths of two binaries");
    };
    let (rounds, dir) = (number_argument(3, ROUNDS)?, TempDir::new()?);
    let folder = dir.path().join("run");
    for (name, arguments, time) in cases() {
        let mut contenders = [&newer, &older].map(|binary| Contender {
            every: 1,
            work: Box::new(|| run(binary, &folder, &arguments, time)),
        });
        // A warm-up round, so that all files are in the page cache.
        interleave(&mut contenders, 1)?;
        let times = interleave(&mut contenders, rounds)?;
        report(&name, times[0], &[("the older binary", times[1])])?;
    }
    Ok(())
}

/// One run in a new run folder.
fn run(binary: &Path, folder: &Path, arguments: &str, time: TimeOf) -> Result<Duration> {
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
