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

/// Another launcher and its command for two ranks.
struct Peer {
    name: &'static str,
    every: usize,
    command: Command,
}

fn main() -> Result<()> {
    let (regatta, dir) = (regatta_binary()?, TempDir::new()?);
    let (mut peers, missing) = peers();
    let run_dir = dir.path().join("run");
    let ours = Box::new(|| time_regatta(&regatta, &run_dir));
    let mut contenders = vec![Contender { every: 1, work: ours }];
    for peer in &mut peers {
        let (every, command) = (peer.every, &mut peer.command);
        contenders.push(Contender { every, work: Box::new(move || time(command)) });
    }
    // A warm-up round, so that all files are in the page cache.
    interleave(&mut contenders, 1)?;
    let times = interleave(&mut contenders, ROUNDS)?;
    drop(contenders);
    let (ours, theirs) = times.split_first().context("no runs")?;
    let named: Vec<_> = peers.iter().map(|p| p.name).zip(theirs.iter().copied()).collect();
    report("launch two ranks", *ours, &named)?;
    missing.iter().for_each(|name| println!("  not installed: {name}"));
    Ok(())
}

/// The installed launchers, and the names of the others.
fn peers() -> (Vec<Peer>, Vec<&'static str>) {
    let all = [
        ("mpiexec.hydra", 1, installed("mpiexec.hydra").map(|p| command(p, &["-n", "2", "true"]))),
        ("Open MPI mpirun", 1, open_mpi()),
        ("torchrun", TORCHRUN_EVERY, torchrun()),
    ];
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for (name, every, command) in all {
        match command {
            Some(command) => peers.push(Peer { name, every, command }),
            None => missing.push(name),
        }
    }
    (peers, missing)
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
