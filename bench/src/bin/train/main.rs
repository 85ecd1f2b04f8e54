//! Training steps compared with PyTorch, if it is installed: forward, backward, clipping and AdamW of GPT-2
//! without biases, on one and two threads, and on two data-parallel ranks. With the argument `ranks`, two
//! ranks are compared with two ranks of PyTorch over gloo: data parallelism with DDP, ZeRO-3 with FSDP2. With
//! the argument `scaling`, f32 and bf16 are compared with PyTorch in the same precision on more threads, and
//! data-parallel ranks on all CPUs with one process. With the argument `kernels`, the time of each operation
//! is printed.
//!
//! Every contender is a process of its own, or several, bound to its CPUs, and contenders run one after the
//! other in each round. The minimum step time over rounds counts, because other load only adds to it; for
//! ranks, which also wait for each other, the median. Ratios per round are printed as well, because they are
//! more reliable where the machine's speed varies. PyTorch is that of `python3`, or of the Python in
//! `REGATTA_BENCH_PYTHON`; it trains in f32, eager and with `torch.compile`.
//!
//! Arguments: presets, `small` and `large`, default both, and `124m`; `ranks`, `scaling` or `kernels`;
//! parallelism of ranks, `data` and `zero3`, default both, and `zero1` for `scaling`. Options: `--rounds N`, default 7; `--steps N` per round; `--eager` skips
//! `torch.compile`, which takes a minute to start; `--weak-scaling` gives each rank the full batch instead of
//! a share of it. For `scaling` and `kernels`: `--threads LIST`, default 8,16; `--ranks LIST`, default none;
//! `--precisions LIST`, default f32,bf16; `--batch N`, the global batch; `--no-peer`.

mod compare_ranks;
mod compare_scaling;
mod compare_threads;
mod contender;
mod kernel_table;
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
use regatta_device::precision::Precision;

/// The first argument of a worker process.
const WORKER: &str = "worker";

/// Pause between contenders, in which threads of the previous one go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Threads,
    Ranks,
    Scaling,
    Kernels,
}

struct Options {
    mode: Mode,
    presets: Vec<Preset>,
    parallelism: Vec<DataParallelism>,
    rounds: usize,
    compile: bool,
    weak_scaling: bool,
    /// Thread counts, rank counts and precisions of `scaling` and `kernels`.
    threads: Vec<usize>,
    ranks: Vec<usize>,
    precisions: Vec<Precision>,
    peer: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, worker] = &args[..]
        && first == WORKER
    {
        return worker::run(worker);
    }
    let options = parse_options(args.into_iter())?;
    let (all, two) = (available_cpus()?, choose_cpus()?);
    options.presets.iter().try_for_each(|preset| match options.mode {
        Mode::Threads => compare_threads::compare(*preset, &options, &two),
        Mode::Ranks => compare_ranks::compare(*preset, &options, &two),
        Mode::Scaling => compare_scaling::compare(*preset, &options, &all),
        Mode::Kernels => kernel_table::print(*preset, &options, &all),
    })
}

fn parse_options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        mode: Mode::Threads,
        presets: Vec::new(),
        parallelism: Vec::new(),
        rounds: 7,
        compile: true,
        weak_scaling: false,
        threads: vec![8, 16],
        ranks: Vec::new(),
        precisions: vec![Precision::F32, Precision::Bf16],
        peer: true,
    };
    let (mut batch, mut steps) = (None, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "ranks" => options.mode = Mode::Ranks,
            "scaling" => options.mode = Mode::Scaling,
            "kernels" => options.mode = Mode::Kernels,
            "--rounds" => options.rounds = value(&arg, &mut args)?.parse()?,
            "--steps" => steps = Some(value(&arg, &mut args)?.parse()?),
            "--threads" => options.threads = parse_counts(&value(&arg, &mut args)?)?,
            "--ranks" => options.ranks = parse_counts(&value(&arg, &mut args)?)?,
            "--precisions" => options.precisions = parse_precisions(&value(&arg, &mut args)?)?,
            "--batch" => batch = Some(value(&arg, &mut args)?.parse()?),
            "--no-peer" => options.peer = false,
            "--eager" => options.compile = false,
            "--weak-scaling" => options.weak_scaling = true,
            // Cargo passes it to every benchmark.
            "--bench" => {}
            _ => match (Preset::find(&arg), DataParallelism::find(&arg)) {
                (Some(preset), _) => options.presets.push(preset),
                (_, Some(kind)) => options.parallelism.push(kind),
                _ => bail!(
                    "unknown argument {arg}: expected a preset (small, large, 124m), a mode or a parallelism"
                ),
            },
        }
    }
    options.presets = or_all(options.presets, &preset::DEFAULT);
    for preset in &mut options.presets {
        preset.batch = batch.unwrap_or(preset.batch);
        preset.steps = steps.unwrap_or(preset.steps);
    }
    let all = match options.mode {
        Mode::Scaling => &DataParallelism::SCALED,
        _ => &DataParallelism::COMPARED,
    };
    options.parallelism = or_all(options.parallelism, all);
    Ok(options)
}

fn value(option: &str, args: &mut impl Iterator<Item = String>) -> Result<String> {
    args.next().with_context(|| format!("{option} needs a value"))
}

fn parse_counts(list: &str) -> Result<Vec<usize>> {
    list.split(',').map(|count| Ok(count.parse()?)).collect()
}

fn parse_precisions(list: &str) -> Result<Vec<Precision>> {
    let parse = |name| {
        let unknown = || format!("unknown precision {name}: expected f32 or bf16");
        Precision::find(name).with_context(unknown)
    };
    list.split(',').map(parse).collect()
}

/// The CPUs of this process's affinity mask.
fn available_cpus() -> Result<Vec<usize>> {
    let affinity = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| affinity.is_set(*cpu)).collect())
}

fn or_all<T: Copy>(selected: Vec<T>, all: &[T]) -> Vec<T> {
    if selected.is_empty() { all.to_vec() } else { selected }
}

/// Two CPUs of this process's affinity mask, on different cores if possible: hyperthreads of one core share
/// its execution units.
fn choose_cpus() -> Result<[usize; 2]> {
    let all = available_cpus()?;
    let first = *all.first().context("the affinity mask is empty")?;
    let siblings = |cpu: usize| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(file).ok()
    };
    let other_core = |cpu: &&usize| siblings(**cpu).is_none_or(|of| Some(of) != siblings(first));
    let second = all[1..].iter().find(other_core).or(all.get(1));
    Ok([first, *second.context("the benchmark needs two CPUs")?])
}
