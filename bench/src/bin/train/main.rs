//! Training steps compared with PyTorch, if it is installed: forward, backward, clipping and AdamW of GPT-2
//! without biases, on one and two threads, and on two data-parallel ranks. With the argument `ranks`, two
//! ranks are compared with two ranks of PyTorch over gloo: data parallelism with DDP, ZeRO-3 with FSDP2.
//!
//! Every contender is a process of its own, or several, bound to its CPUs, and contenders run one after the
//! other in each round. The minimum step time over rounds counts, because other load only adds to it; for
//! ranks, which also wait for each other, the median. Ratios per round are printed as well, because they are
//! more reliable where the machine's speed varies. PyTorch is that of `python3`, or of the Python in
//! `REGATTA_BENCH_PYTHON`; it trains in f32, eager and with `torch.compile`.
//!
//! Arguments: presets, `small` and `large`, default both; `ranks`; parallelism of ranks, `data` and `zero3`,
//! default both. Options: `--rounds N`, default 7; `--eager` skips `torch.compile`, which takes a minute to
//! start; `--weak-scaling` gives each rank the full batch instead of a share of it.

mod compare_ranks;
mod compare_threads;
mod measurements;
mod preset;
mod round_line;
mod table;
mod worker;
mod worker_processes;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity};

use preset::{DataParallelism, Preset};

/// The first argument of a worker process.
const WORKER: &str = "worker";

/// Pause between contenders, in which threads of the previous one go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

struct Options {
    ranks: bool,
    presets: Vec<Preset>,
    parallelism: Vec<DataParallelism>,
    rounds: usize,
    compile: bool,
    weak_scaling: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == WORKER) {
        return worker::run(&args[1..]);
    }
    let options = parse_options(args.into_iter())?;
    let cpus = choose_cpus()?;
    let compare = if options.ranks { compare_ranks::compare } else { compare_threads::compare };
    options.presets.iter().try_for_each(|preset| compare(*preset, &options, &cpus))
}

fn parse_options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut presets, mut parallelism) = (Vec::new(), Vec::new());
    let (mut ranks, mut rounds, mut compile, mut weak_scaling) = (false, 7, true, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "ranks" => ranks = true,
            "--rounds" => rounds = args.next().context("--rounds needs a value")?.parse()?,
            "--eager" => compile = false,
            "--weak-scaling" => weak_scaling = true,
            // Cargo passes it to every benchmark.
            "--bench" => {}
            _ => match (Preset::find(&arg), DataParallelism::find(&arg)) {
                (Some(preset), _) => presets.push(preset),
                (_, Some(kind)) => parallelism.push(kind),
                _ => bail!("unknown argument {arg}: expected small, large, ranks, data or zero3"),
            },
        }
    }
    let presets = or_all(presets, &preset::ALL);
    let parallelism = or_all(parallelism, &DataParallelism::ALL);
    Ok(Options { ranks, presets, parallelism, rounds, compile, weak_scaling })
}

fn or_all<T: Copy>(selected: Vec<T>, all: &[T]) -> Vec<T> {
    if selected.is_empty() { all.to_vec() } else { selected }
}

/// Two CPUs of this process's affinity mask, on different cores if possible: hyperthreads of one core share
/// its execution units.
fn choose_cpus() -> Result<[usize; 2]> {
    let affinity = sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| affinity.is_set(*cpu)).collect();
    let first = *all.first().context("the affinity mask is empty")?;
    let siblings = |cpu: usize| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(file).ok()
    };
    let other_core = |cpu: &&usize| siblings(**cpu).is_none_or(|of| Some(of) != siblings(first));
    let second = all[1..].iter().find(other_core).or(all.get(1));
    Ok([first, *second.context("the benchmark needs two CPUs")?])
}
