//! Launch latency: `regatta launch -n 2 -- true` on this machine, from the start of the first
//! process to the exit of the last, compared with other launchers.
//!
//! Uses the `regatta` binary next to this program, so build both in the same profile. torchrun is
//! taken from `PATH` or `REGATTA_BENCH_TORCHRUN`; launchers that are not installed are listed and
//! skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_benchmarks::{Contender, TempDir, interleave, regatta_binary, report};

/// Number of rounds.
const ROUNDS: usize = 60;
/// torchrun takes seconds, so it only runs in every tenth round.
const TORCHRUN_EVERY: usize = 10;
const TORCHRUN: &str = "REGATTA_BENCH_TORCHRUN";

fn main() -> Result<()> {
    let (regatta, dir) = (regatta_binary()?, TempDir::new()?);
    let run_dir = dir.path().join("run");
    let ours = Box::new(|| time_regatta(&regatta, &run_dir));
    let mut contenders = vec![Contender { every: 1, work: ours }];
    let (mut names, mut missing) = (Vec::new(), Vec::new());
    for (name, every, command) in peers() {
        let Some(mut command) = command else {
            missing.push(name);
            continue;
        };
        names.push(name);
        contenders.push(Contender { every, work: Box::new(move || time(&mut command)) });
    }
    // A warm-up round, so that all files are in the page cache.
    interleave(&mut contenders, 1)?;
    let times = interleave(&mut contenders, ROUNDS)?;
    let (ours, theirs) = times.split_first().context("no runs")?;
    let named: Vec<_> = names.into_iter().zip(theirs.iter().copied()).collect();
    report("launch two ranks", *ours, &named)?;
    missing.iter().for_each(|name| println!("  not installed: {name}"));
    Ok(())
}

/// Other launchers, each with the rounds between its runs and, if it is installed, its command for two ranks.
fn peers() -> [(&'static str, usize, Option<Command>); 3] {
    [
        ("mpiexec.hydra", 1, installed("mpiexec.hydra").map(|p| command(p, &["-n", "2", "true"]))),
        ("Open MPI mpirun", 1, open_mpi()),
        ("torchrun", TORCHRUN_EVERY, torchrun()),
    ]
}

/// `mpirun` may belong to another MPI, so its version is checked.
fn open_mpi() -> Option<Command> {
    let is_it = |program: &PathBuf| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("Open MPI"))
    };
    let program = ["mpirun.openmpi", "mpirun"].into_iter().filter_map(installed).find(is_it)?;
    let mut command = command(program, &["--oversubscribe", "-n", "2", "true"]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some(command)
}

fn torchrun() -> Option<Command> {
    let chosen = std::env::var_os(TORCHRUN).map(PathBuf::from);
    let program = chosen.or_else(|| installed("torchrun"))?;
    Some(command(program, &["--nproc-per-node", "2", "--no-python", "true"]))
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn command(program: PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// From the start to the exit of the launcher, which outlives its ranks.
fn time(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{command:?}"))?;
    let time = start.elapsed();
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Ok(time)
}

/// One launch with a run folder.
fn time_regatta(regatta: &Path, run_dir: &Path) -> Result<Duration> {
    let mut command = command(regatta.to_owned(), &["launch", "-n", "2", "--run-dir"]);
    let time = time(command.arg(run_dir).args(["--", "true"]))?;
    std::fs::remove_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    Ok(time)
}
