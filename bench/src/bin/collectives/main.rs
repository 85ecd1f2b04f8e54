//! Collectives compared with Open MPI, MPICH and gloo, as far as they are installed: f32, several
//! sizes, interleaved runs, and a plain copy of the same bytes.
//!
//! The MPI programs are compiled with `mpicc.openmpi` and `mpicc.mpich`; gloo is used through the
//! PyTorch of `REGATTA_BENCH_PYTHON` or `python3`.
//!
//! Arguments: numbers of ranks, 2 and 4 by default. `--hosts` runs each rank in a network namespace
//! of its own, connected over TCP (needs root). `--runs N` sets the number of interleaved runs,
//! `--bytes A,B,…` selects sizes, `--only NAME,…` selects collectives, and `--peers NAME,…` peers.
//!
//! A round is 20 calls (fewer from 64 MiB on) after 5 warm-ups. The table has the median of the
//! rounds of all runs and, in brackets, the quartiles; the first call of each size has a table of its
//! own.

mod launch_local;
mod launch_namespaces;
mod rank;
mod results;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use regatta_benchmarks::{TempDir, peer_source, python_with_torch, regatta_binary};

use results::Results;

/// Our name among the implementations.
const OURS: &str = "Regatta";
/// Set in rank processes.
const RANK: &str = "REGATTA_BENCH_RANK";
/// Ours only: an in-place all-reduce in buffers of the communicator.
const IN_BUFFERS: &str = "in-buffers";
/// Ours only: every rank copies a buffer, the limit of collectives in which one core copies all bytes.
const COPY: &str = "copy";
const NAMES: [&str; 11] = [
    "barrier",
    "all-reduce",
    "reduce",
    "broadcast",
    "all-gather",
    "reduce-scatter",
    "gather",
    "scatter",
    "all-to-all",
    IN_BUFFERS,
    COPY,
];

/// Command-line options.
struct Options {
    ranks: Vec<u32>,
    hosts: bool,
    runs: usize,
    bytes: Vec<u64>,
    names: Vec<String>,
    /// All, if empty.
    peers: Vec<String>,
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
    let bytes = [3, 6, 8, 10, 12, 15, 18, 20, 23, 26].map(|bits| 1 << bits).to_vec();
    let names = NAMES.map(str::to_owned).to_vec();
    let mut options =
        Options { ranks: Vec::new(), hosts: false, runs: 3, bytes, names, peers: Vec::new() };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} requires a value"));
        let list = |text: String| text.split(',').map(str::to_owned).collect();
        match word.as_str() {
            "--hosts" => options.hosts = true,
            "--runs" => options.runs = value()?.parse()?,
            "--bytes" => {
                options.bytes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            "--only" => options.names = list(value()?),
            "--peers" => options.peers = list(value()?),
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

/// Arguments of an implementation: the collectives, then warm-ups, rounds, calls and bytes of each
/// size.
fn arguments(ours: bool, options: &Options) -> Vec<String> {
    let ours_only = |name: &str| [IN_BUFFERS, COPY].contains(&name);
    let names = options.names.iter().filter(|name| ours || !ours_only(name));
    let size = |bytes: &u64| match *bytes {
        0..0x400_0000 => [5, 5, 20, *bytes],
        0x400_0000..0x1000_0000 => [2, 2, 4, *bytes],
        _ => [1, 1, 2, *bytes],
    };
    let sizes = options.bytes.iter().flat_map(size).map(|number| number.to_string());
    [names.cloned().collect::<Vec<_>>().join(",")].into_iter().chain(sizes).collect()
}

/// The installed implementations, and the names of the others. MPI programs are compiled to `folder`.
fn peers(folder: &Path, wanted: &[String]) -> Result<(Vec<Peer>, Vec<&'static str>)> {
    let (mpi, regatta) = (|compiler| compile_mpi(compiler, folder), Launcher::Regatta);
    let gloo = python_with_torch().map(|python| vec![python, peer_source("collectives.py")]);
    let all = [
        (OURS, regatta, Some(vec![std::env::current_exe()?])),
        ("Open MPI", Launcher::OpenMpi, mpi("mpicc.openmpi")),
        ("MPICH", Launcher::Mpich, mpi("mpicc.mpich")),
        ("gloo", regatta, gloo),
    ];
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for (name, launcher, program) in all {
        if name != OURS && !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
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
    let (peers, missing) = peers(folder, &options.peers)?;
    let mut results: Vec<Results> = peers.iter().map(|_| Results::default()).collect();
    for _ in 0..options.runs {
        for (peer, results) in peers.iter().zip(&mut results) {
            let arguments = arguments(peer.name == OURS, options);
            results.read(&run(peer, &arguments).context(peer.name)?);
        }
    }
    let place = if options.hosts { " on separate hosts" } else { "" };
    println!("{ranks} ranks{place}, {} cores, µs", std::thread::available_parallelism()?);
    missing.iter().for_each(|name| println!("not installed: {name}"));
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    results::print(&names, &results, options, ranks, "");
    println!("\nfirst call:");
    results::print(&names, &results, options, ranks, ":first");
    Ok(())
}
