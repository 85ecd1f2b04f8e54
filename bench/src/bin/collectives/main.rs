//! Collectives compared with Open MPI, MPICH and gloo, as far as they are installed: f32, several
//! sizes, interleaved runs, and a plain copy of the same bytes.
//!
//! The MPI programs are compiled with `mpicc.openmpi` and `mpicc.mpich`; gloo is used through the
//! PyTorch of `REGATTA_BENCH_PYTHON` or `python3`.
//!
//! Arguments: numbers of ranks, 2 and 4 by default. `--hosts` runs each rank in a network namespace
//! of its own, connected over TCP (needs root). `--min` reports the fastest round instead of the
//! median, for machines with background load; `--runs N` sets the number of interleaved runs;
//! `--bytes A,B,…` selects sizes.

mod launch_local;
mod launch_namespaces;
mod rank;
mod results;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use regatta_benchmarks::{TempDir, peer_source, python_with_torch, regatta_binary};

use results::{Results, Statistic};

/// Set in rank processes.
const RANK: &str = "REGATTA_BENCH_RANK";
/// Rounds per size and run; the peers' programs use the same number.
const ROUNDS: usize = 5;
/// The last one is ours only: an in-place all-reduce in buffers of the communicator.
const NAMES: [&str; 5] = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "in-buffers"];

/// Command-line options.
struct Options {
    ranks: Vec<u32>,
    hosts: bool,
    statistic: Statistic,
    runs: usize,
    bytes: Vec<u64>,
}

/// The launcher of a program's ranks.
#[derive(Clone, Copy)]
enum Launcher {
    Regatta,
    OpenMpi,
    Mpich,
}

/// An implementation of the collectives.
struct Peer {
    name: &'static str,
    launcher: Launcher,
    /// The program and its first arguments.
    program: Vec<PathBuf>,
}

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return rank::run();
    }
    let options = options(std::env::args().skip(1))?;
    options.ranks.iter().try_for_each(|&ranks| {
        if options.hosts {
            let hosts = launch_namespaces::Hosts::new(ranks)?;
            return compare(ranks, &options, hosts.folder(), |peer, args| hosts.run(peer, args));
        }
        let (regatta, folder) = (regatta_binary()?, TempDir::new()?);
        let run_dir = folder.path().join("run");
        compare(ranks, &options, folder.path(), |peer, args| {
            launch_local::run(&regatta, ranks, &run_dir, peer, args)
        })
    })
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let bytes = [3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28].map(|bits| 1 << bits).to_vec();
    let (ranks, statistic) = (Vec::new(), Statistic::Median);
    let mut options = Options { ranks, hosts: false, statistic, runs: 3, bytes };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} requires a value"));
        match word.as_str() {
            "--hosts" => options.hosts = true,
            "--min" => options.statistic = Statistic::Minimum,
            "--runs" => options.runs = value()?.parse()?,
            "--bytes" => {
                options.bytes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            // Cargo passes it to every benchmark.
            "--bench" => {}
            _ => {
                let invalid = || format!("invalid number of ranks: {word}");
                options.ranks.push(word.parse().with_context(invalid)?);
            }
        }
    }
    if options.ranks.is_empty() {
        options.ranks = vec![2, 4];
    }
    if options.hosts {
        options.bytes.retain(|bytes| *bytes <= 64 << 20);
    }
    Ok(options)
}

/// Arguments of an implementation: pairs of repetitions per round and bytes. Slow implementations
/// repeat small sizes less often.
fn arguments(name: &str, ranks: u32, bytes: &[u64]) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let max = if name == "gloo" || ranks > cores { 100 } else { 2000 };
    let repeats = |bytes: u64| ((64u64 << 20) / bytes.max(1)).clamp(2, max);
    bytes.iter().flat_map(|bytes| [repeats(*bytes).to_string(), bytes.to_string()]).collect()
}

/// The installed implementations, and the names of the others. MPI programs are compiled to `folder`.
fn peers(folder: &Path) -> Result<(Vec<Peer>, Vec<&'static str>)> {
    let (mpi, regatta) = (|compiler| compile_mpi(compiler, folder), Launcher::Regatta);
    let gloo = python_with_torch().map(|python| vec![python, peer_source("collectives.py")]);
    let all = [
        ("ours", regatta, Some(vec![std::env::current_exe()?])),
        ("Open MPI", Launcher::OpenMpi, mpi("mpicc.openmpi")),
        ("MPICH", Launcher::Mpich, mpi("mpicc.mpich")),
        ("gloo", regatta, gloo),
    ];
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for (name, launcher, program) in all {
        match program {
            Some(program) => peers.push(Peer { name, launcher, program }),
            None => missing.push(name),
        }
    }
    Ok((peers, missing))
}

/// Compiles the MPI program, if the compiler is installed.
fn compile_mpi(compiler: &str, folder: &Path) -> Option<Vec<PathBuf>> {
    let program = folder.join(compiler);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(&program).arg(peer_source("collectives.c"));
    command.stderr(Stdio::null()).status().is_ok_and(|s| s.success()).then_some(vec![program])
}

/// Compares all implementations; `run` runs one once and returns rank 0's output.
fn compare(
    ranks: u32,
    options: &Options,
    folder: &Path,
    run: impl Fn(&Peer, &[String]) -> Result<String>,
) -> Result<()> {
    let (peers, missing) = peers(folder)?;
    let mut results: Vec<Results> = peers.iter().map(|_| Results::default()).collect();
    for _ in 0..options.runs {
        for (peer, results) in peers.iter().zip(&mut results) {
            let arguments = arguments(peer.name, ranks, &options.bytes);
            results.read(&run(peer, &arguments).context(peer.name)?);
        }
    }
    let place = if options.hosts { "on separate hosts," } else { "" };
    println!("{ranks} ranks {place} on {} cores", std::thread::available_parallelism()?);
    missing.iter().for_each(|name| println!("not installed: {name}"));
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    results::print(&names, &results, options.statistic, &options.bytes);
    Ok(())
}
