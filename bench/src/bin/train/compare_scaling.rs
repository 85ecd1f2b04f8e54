//! Many threads compared with PyTorch in the same precision, and data-parallel ranks on all CPUs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_benchmarks::python_with_torch;
use regatta_device::precision::Precision;

use crate::Options;
use crate::contender::{Contender, run_rounds};
use crate::preset::{DataParallelism, Preset};
use crate::worker_processes::Workers;

/// Pause between contenders: OpenMP threads spin for 200 ms before they sleep.
const PAUSE: Duration = Duration::from_millis(300);

pub fn compare(preset: Preset, options: &Options, cpus: &[usize]) -> Result<()> {
    println!("{}, vocabulary {}", preset.describe(), preset.vocab_size);
    let thread_counts: Vec<_> =
        options.threads.iter().filter(|threads| **threads <= cpus.len()).collect();
    let wants_peer = options.peer && !thread_counts.is_empty();
    let python = wants_peer.then(python_with_torch).flatten();
    for threads in thread_counts {
        for precision in options.precisions.iter().copied() {
            compare_threads(preset, options, python.as_deref(), precision, &cpus[..*threads])?;
        }
    }
    for precision in options.precisions.iter().copied() {
        for ranks in options.ranks.iter().filter(|ranks| **ranks <= cpus.len()) {
            for parallelism in options.parallelism.iter().filter(|_| *ranks > 1) {
                measure_ranks(preset, options, precision, *ranks, *parallelism, cpus)?;
            }
            if *ranks == 1 {
                let name = format!("1 rank x {}, {}", cpus.len(), precision.name());
                measure(&name, Workers::regatta(preset, precision, cpus)?, preset, options)?;
            }
        }
    }
    Ok(())
}

/// One process of Regatta and one of PyTorch, in alternating rounds.
fn compare_threads(
    preset: Preset,
    options: &Options,
    python: Option<&Path>,
    precision: Precision,
    cpus: &[usize],
) -> Result<()> {
    let mut contenders =
        vec![Contender::new("Regatta", Workers::regatta(preset, precision, cpus)?)];
    if let Some(python) = python {
        let eager = Workers::torch(python, preset, false, precision, cpus)?;
        contenders.push(Contender::new("PyTorch, eager", eager));
        if options.compile {
            match Workers::torch(python, preset, true, precision, cpus) {
                Ok(compiled) => contenders.push(Contender::new("PyTorch, compiled", compiled)),
                Err(error) => println!("torch.compile fails: {error:#}"),
            }
        }
    }
    run_rounds(&mut contenders, preset, options.rounds, PAUSE)?;
    println!("{} threads, {}", cpus.len(), precision.name());
    contenders.iter().for_each(|contender| contender.print(&preset));
    let (own, peers) = contenders.split_first().context("no contenders")?;
    for peer in peers {
        let ratio = peer.seconds() / own.seconds();
        let [min, max] = peer.measurements.ratio_range(&own.measurements);
        println!("  {ratio:.2}x {} (per round {min:.2} to {max:.2})", peer.name);
    }
    Ok(())
}

/// Data-parallel ranks that share the CPUs and the batch. One rank count after the other, because the
/// models of all would not fit into memory.
fn measure_ranks(
    preset: Preset,
    options: &Options,
    precision: Precision,
    ranks: usize,
    parallelism: DataParallelism,
    cpus: &[usize],
) -> Result<()> {
    let threads = cpus.len() / ranks;
    let each: Vec<&[usize]> = cpus.chunks_exact(threads).take(ranks).collect();
    let batch = preset.batch / ranks;
    let workers = Workers::regatta_ranks(preset, precision, parallelism, &each, batch)?;
    let (precision, parallelism) = (precision.name(), parallelism.regatta_name());
    let name = format!("{ranks} ranks x {threads}, {precision}, {parallelism}");
    measure(&name, workers, preset, options)
}

fn measure(name: &str, workers: Workers, preset: Preset, options: &Options) -> Result<()> {
    let mut contenders = [Contender::new(name, workers)];
    run_rounds(&mut contenders, preset, options.rounds, PAUSE)?;
    contenders[0].print(&preset);
    Ok(())
}

impl Contender {
    /// Median throughput with quartiles, and the median time of each phase.
    fn print(&self, preset: &Preset) {
        let tokens = preset.tokens(self.workers.global_batch) as f64;
        let times = self.measurements.step_times();
        let [low, median, high] =
            [times.high, times.median, times.low].map(|time| tokens / time.as_secs_f64());
        let phase = |name: &str, seconds: Option<f64>| {
            seconds.map(|seconds| format!(", {name} {:.0} ms", seconds * 1e3)).unwrap_or_default()
        };
        let of = &self.measurements;
        println!(
            "  {:<36}{median:>8.0} tokens/s ({low:.0} to {high:.0}), {:.0} ms/step{}{}{}{}",
            self.name,
            times.median.as_secs_f64() * 1e3,
            phase("forward", of.median_phase(|_, phases| phases.forward)),
            phase("backward", of.median_phase(|_, phases| phases.backward)),
            phase("communication", of.median_phase(|_, phases| phases.communication)),
            phase("optimizer", of.median_phase(|_, phases| phases.optimizer)),
        );
    }
}
