//! Collectives compared with Open MPI, MPICH and gloo, as far as they are installed: f32, several
//! sizes, interleaved runs, and a plain copy of the same bytes.
//!
//! The MPI programs are compiled with `mpicc.openmpi` and `mpicc.mpich`; gloo is used through the
//! PyTorch of `REGATTA_BENCH_PYTHON` or `python3`.
//!
//! Arguments: numbers of ranks, 2 and 4 by default. `--hosts` puts each rank in a network namespace
//! of its own, connected over TCP (needs root). `--min` reports the fastest round instead of the
//! median, for machines with background load; `--runs N` sets the number of interleaved runs;
//! `--bytes A,B,…` selects sizes.

mod mpi_tools;
mod multi_node;
mod rank;
mod results;
mod single_node;

use anyhow::{Context, Result, bail};
use regatta_benchmarks::TempDir;

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

/// An implementation of the collectives: runs once and returns rank 0's output.
struct Peer<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Result<String> + 'a>,
}

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return rank::run();
    }
    let options = options(std::env::args().skip(1))?;
    options.ranks.iter().try_for_each(|ranks| match options.hosts {
        true => {
            multi_node::with_peers(*ranks, &options.bytes, |peers| compare(*ranks, &options, peers))
        }
        false => {
            let folder = TempDir::new()?;
            compare(*ranks, &options, single_node::peers(*ranks, &options.bytes, folder.path())?)
        }
    })
}

fn options(words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        ranks: Vec::new(),
        hosts: false,
        statistic: Statistic::Median,
        runs: 3,
        bytes: sizes(),
    };
    let mut words = words.peekable();
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
            _ => match word.parse() {
                Ok(ranks) => options.ranks.push(ranks),
                Err(_) => bail!("invalid number of ranks: {word}"),
            },
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

fn sizes() -> Vec<u64> {
    [3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28].map(|bits| 1u64 << bits).to_vec()
}

/// Arguments of an implementation: pairs of repetitions per round and bytes. Slow implementations
/// repeat small sizes less often.
fn arguments(name: &str, ranks: u32, bytes: &[u64]) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let most = if name == "gloo" || ranks > cores { 100 } else { 2000 };
    let repeats = |bytes: u64| ((64u64 << 20) / bytes.max(1)).clamp(2, most);
    bytes.iter().flat_map(|bytes| [repeats(*bytes).to_string(), bytes.to_string()]).collect()
}

fn compare(ranks: u32, options: &Options, (peers, missing): Contestants<'_>) -> Result<()> {
    let mut results: Vec<Results> = peers.iter().map(|_| Results::default()).collect();
    for _ in 0..options.runs {
        for (peer, results) in peers.iter().zip(&mut results) {
            results.read(&(peer.run)().with_context(|| peer.name.to_owned())?);
        }
    }
    let place = if options.hosts { "on separate hosts," } else { "" };
    println!("{ranks} ranks {place} on {} cores", std::thread::available_parallelism()?);
    missing.iter().for_each(|name| println!("not installed: {name}"));
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    results::print(&names, &results, options.statistic, &options.bytes);
    Ok(())
}

/// All implementations, and the names of those that are not installed.
type Contestants<'a> = (Vec<Peer<'a>>, Vec<&'static str>);
