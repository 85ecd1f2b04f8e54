//! Whole training steps beside PyTorch's, if it is installed: forward, backward, clipping and AdamW of
//! GPT-2 without biases, on one and two threads; and two data-parallel ranks beside one.
//!
//! Everybody is a process of its own that is bound to its processors and waits for its turn, and the
//! least time of a step in several turns counts: whatever else the machine does only adds to it.
//! PyTorch is that of the Python in `PATH`, or of the one that `REGATTA_BENCH_PYTHON` names; it
//! trains in single precision, eager and through `torch.compile` where that works.
//!
//! Arguments: the presets, `small` and `large`, by themselves both. Options: `--turns N`, by itself 7;
//! `--eager` leaves `torch.compile` out, which takes a minute to begin.

mod crew;
mod preset;
mod table;
mod worker;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_train::cpu::Precision;

use crew::Crew;
use preset::Preset;
use table::Row;

/// The first argument of a process that trains.
const WORKER: &str = "worker";

/// Between turns: threads of the one before go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

struct Options {
    presets: Vec<Preset>,
    turns: usize,
    compiled: bool,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == WORKER) {
        return worker::be_one(&words[1..]);
    }
    let options = options(words.into_iter())?;
    let cpus = processors()?;
    options.presets.iter().try_for_each(|preset| compare(*preset, &options, &cpus))
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { presets: Vec::new(), turns: 7, compiled: true };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--turns" => options.turns = words.next().context("--turns needs a value")?.parse()?,
            "--eager" => options.compiled = false,
            // Cargo gives it to every program that it benchmarks.
            "--bench" => {}
            _ => match Preset::find(&word) {
                Some(preset) => options.presets.push(preset),
                None => bail!("{word} is no preset: small or large"),
            },
        }
    }
    if options.presets.is_empty() {
        options.presets = preset::ALL.to_vec();
    }
    Ok(options)
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

fn compare(preset: Preset, options: &Options, cpus: &[usize; 2]) -> Result<()> {
    println!("{}", preset.describe());
    let mut crews = crews(preset, options, cpus)?;
    let mut least = vec![f64::INFINITY; crews.len()];
    for _ in 0..options.turns.max(1) {
        for (crew, least) in crews.iter_mut().zip(&mut least) {
            std::thread::sleep(PAUSE);
            *least = least.min(crew.turn(preset.steps)?);
        }
    }
    let rows: Vec<Row> =
        crews.iter().zip(least).map(|(crew, seconds)| Row::new(crew, &preset, seconds)).collect();
    table::print(&preset, &rows);
    Ok(())
}

/// All that take turns, ready.
fn crews(preset: Preset, options: &Options, cpus: &[usize; 2]) -> Result<Vec<Crew>> {
    let precisions = [Precision::F32, Precision::Bf16];
    let python = crew::python();
    if python.is_none() {
        println!("not installed: PyTorch");
    }
    let mut crews = Vec::new();
    for threads in 1..=cpus.len() {
        for precision in precisions {
            crews.push(Crew::ours(preset, precision, &cpus[..threads])?);
        }
        for compiled in [false, true] {
            let Some(python) = python.as_ref().filter(|_| options.compiled || !compiled) else {
                continue;
            };
            match Crew::torch(python, preset, compiled, &cpus[..threads]) {
                Ok(crew) => crews.push(crew),
                Err(error) if compiled => println!("torch.compile does not work here: {error:#}"),
                Err(error) => return Err(error.context("PyTorch")),
            }
        }
    }
    // As many sequences as one rank has, shared, and as many for each.
    for precision in precisions {
        for each in [preset.batch / cpus.len(), preset.batch] {
            crews.push(Crew::ranks(preset, precision, cpus, each)?);
        }
    }
    Ok(crews)
}
