//! Whole training steps beside PyTorch's, if it is installed: forward, backward, clipping and AdamW of
//! GPT-2 without biases, on one and two threads; and two data-parallel ranks beside one. With the
//! word `ranks`, two ranks beside two of PyTorch's that talk by gloo: data parallel beside DDP, and
//! ZeRO-3 beside FSDP2.
//!
//! Everybody is a process of its own that is bound to its processors and waits for its turn. The
//! least time of a step in several turns counts, because whatever else the machine does only adds to
//! it; of ranks, which also wait for each other, the median. Where the machine's own speed changes,
//! ratios by turn tell more, and are printed beside. PyTorch is that of the Python in `PATH`,
//! or of the one that `REGATTA_BENCH_PYTHON` names; it trains in single precision, eager and through
//! `torch.compile` where that works.
//!
//! Arguments: the presets, `small` and `large`, by themselves both; `ranks`, and what they share, `data`
//! and `zero3`, by itself each. Options: `--turns N`, by itself 7; `--eager` leaves `torch.compile`
//! out, which takes a minute to begin; `--each` gives each rank as many sequences as one has alone,
//! instead of half of them.

mod answer;
mod crew;
mod figures;
mod preset;
mod ranks;
mod table;
mod threads;
mod worker;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use preset::{Preset, Split};

/// The first argument of a process that trains.
const WORKER: &str = "worker";

/// Between turns: threads of the one before go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

struct Options {
    ranks: bool,
    presets: Vec<Preset>,
    splits: Vec<Split>,
    turns: usize,
    compiled: bool,
    each: bool,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == WORKER) {
        return worker::be_one(&words[1..]);
    }
    let options = options(words.into_iter())?;
    let cpus = processors()?;
    let compare = if options.ranks { ranks::compare } else { threads::compare };
    options.presets.iter().try_for_each(|preset| compare(*preset, &options, &cpus))
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let (mut presets, mut splits) = (Vec::new(), Vec::new());
    let (mut ranks, mut turns, mut compiled, mut each) = (false, 7, true, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "ranks" => ranks = true,
            "--turns" => turns = words.next().context("--turns needs a value")?.parse()?,
            "--eager" => compiled = false,
            "--each" => each = true,
            // Cargo gives it to every program that it benchmarks.
            "--bench" => {}
            _ => match (Preset::find(&word), Split::find(&word)) {
                (Some(preset), _) => presets.push(preset),
                (_, Some(split)) => splits.push(split),
                _ => bail!("{word} is no preset, small or large, and nothing that ranks share"),
            },
        }
    }
    let (presets, splits) = (or_all(presets, &preset::ALL), or_all(splits, &Split::ALL));
    Ok(Options { ranks, presets, splits, turns, compiled, each })
}

fn or_all<T: Copy>(named: Vec<T>, all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named }
}

/// Two processors that this process may use, of different cores where there are several: two
/// threads of one core are no more than one and a bit.
fn processors() -> Result<[usize; 2]> {
    let may = rustix::thread::sched_getaffinity(None)?;
    let all: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).collect();
    let first = *all.first().context("this process may use no processor")?;
    let siblings = |cpu: usize| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(file).ok()
    };
    let other_core = |cpu: &&usize| siblings(**cpu).is_none_or(|of| Some(of) != siblings(first));
    let second = all[1..].iter().find(other_core).or(all.get(1));
    Ok([first, *second.context("this needs two processors")?])
}
