//! Collectives beside those of Open MPI, MPICH and gloo, as far as they are installed: f32, each
//! size, from interleaved runs, and what a plain copy of the same bytes takes.
//!
//! MPI's programs are compiled with `mpicc.openmpi` and `mpicc.mpich`; gloo is that of the Python
//! with PyTorch in `PATH`, or the one that `REGATTA_BENCH_PYTHON` names.
//!
//! Arguments: the numbers of ranks, by themselves 2 and 4. With `--hosts` each rank is on a host of
//! its own, made of namespaces, and all go over TCP (this needs root). Options: `--least` takes the
//! fastest round instead of the median, for a machine that others use, too; `--turns N`;
//! `--bytes A,B,…` measures only these sizes.

mod figures;
mod here;
mod hosts;
mod rank;
mod tools;

use anyhow::{Context, Result, bail};

use figures::{Figures, Pick};
use tools::Folder;

/// Says that this process is a rank.
const RANK: &str = "REGATTA_BENCH_RANK";
/// Rounds of a size, in a turn; the peers' programs have as many.
const ROUNDS: usize = 5;
/// The last is ours only: an all-reduce in place, in buffers of the communicator.
const NAMES: [&str; 5] = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "in-buffers"];

/// What is asked for.
struct Options {
    ranks: Vec<u32>,
    hosts: bool,
    pick: Pick,
    turns: usize,
    bytes: Vec<u64>,
}

/// Somebody's collectives: runs once, and gives what rank 0 printed.
struct Peer<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Result<String> + 'a>,
}

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return rank::be_one();
    }
    let options = options(std::env::args().skip(1))?;
    options.ranks.iter().try_for_each(|ranks| match options.hosts {
        true => hosts::with_peers(*ranks, &options.bytes, |peers| compare(*ranks, &options, peers)),
        false => {
            let folder = Folder::new()?;
            compare(*ranks, &options, here::peers(*ranks, &options.bytes, &folder.0)?)
        }
    })
}

fn options(words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options =
        Options { ranks: Vec::new(), hosts: false, pick: Pick::Median, turns: 3, bytes: sizes() };
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--hosts" => options.hosts = true,
            "--least" => options.pick = Pick::Least,
            "--turns" => options.turns = value()?.parse()?,
            "--bytes" => {
                options.bytes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            // Cargo gives it to every program that it benchmarks.
            "--bench" => {}
            _ => match word.parse() {
                Ok(ranks) => options.ranks.push(ranks),
                Err(_) => bail!("{word} is no number of ranks"),
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

/// What somebody's program is called with: the repeats of a round and bytes, in pairs. Those who need
/// milliseconds for the smallest repeat it less often.
fn arguments(name: &str, ranks: u32, bytes: &[u64]) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let most = if name == "gloo" || ranks > cores { 100 } else { 2000 };
    let repeats = |bytes: u64| ((64u64 << 20) / bytes.max(1)).clamp(2, most);
    bytes.iter().flat_map(|bytes| [repeats(*bytes).to_string(), bytes.to_string()]).collect()
}

fn compare(ranks: u32, options: &Options, (peers, missing): Found<'_>) -> Result<()> {
    let mut figures: Vec<Figures> = peers.iter().map(|_| Figures::default()).collect();
    for _ in 0..options.turns {
        for (peer, figures) in peers.iter().zip(&mut figures) {
            figures.read(&(peer.run)().with_context(|| peer.name.to_owned())?);
        }
    }
    let place = if options.hosts { "one on each host," } else { "" };
    println!("{ranks} ranks {place} on {} cores", std::thread::available_parallelism()?);
    missing.iter().for_each(|name| println!("not installed: {name}"));
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    figures::print(&names, &figures, options.pick, &options.bytes);
    Ok(())
}

/// Ours and the peers, and who is not installed.
type Found<'a> = (Vec<Peer<'a>>, Vec<&'static str>);
