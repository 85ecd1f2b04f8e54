//! Processes of one and two threads compared with PyTorch, and two data-parallel ranks with one.

use anyhow::Result;
use regatta_benchmarks::python_with_torch;
use regatta_device::precision::Precision;

use crate::preset::{DataParallelism, Preset};
use crate::round_line::RoundReport;
use crate::table::{self, ResultRow};
use crate::worker_processes::Workers;
use crate::{Options, PAUSE};

pub fn compare(preset: Preset, options: &Options, cpus: &[usize]) -> Result<()> {
    println!("{}", preset.describe());
    let mut groups = start_workers(preset, options, cpus)?;
    let mut seconds = vec![Vec::new(); groups.len()];
    for _ in 0..options.rounds.max(1) {
        for (workers, seconds) in groups.iter_mut().zip(&mut seconds) {
            std::thread::sleep(PAUSE);
            seconds.push(slowest(&workers.run_round(preset.steps)?));
        }
    }
    let row = |(workers, seconds)| ResultRow::new(workers, &preset, seconds);
    let rows: Vec<ResultRow> = groups.iter().zip(seconds).map(row).collect();
    table::print(&preset, &rows);
    Ok(())
}

/// Mean step time of the slowest process.
fn slowest(reports: &[RoundReport]) -> f64 {
    reports.iter().map(RoundReport::mean_seconds).fold(0.0, f64::max)
}

fn start_workers(preset: Preset, options: &Options, cpus: &[usize]) -> Result<Vec<Workers>> {
    let precisions = [Precision::F32, Precision::Bf16];
    let python = python_with_torch();
    if python.is_none() {
        println!("PyTorch is not installed");
    }
    let mut groups = Vec::new();
    for threads in 1..=cpus.len() {
        for precision in precisions {
            groups.push(Workers::regatta(preset, precision, &cpus[..threads])?);
        }
        for compiled in [false, true] {
            let wanted = options.compile || !compiled;
            let Some(python) = python.as_ref().filter(|_| wanted) else { continue };
            match Workers::torch(python, preset, compiled, Precision::F32, &cpus[..threads]) {
                Ok(workers) => groups.push(workers),
                Err(error) if compiled => println!("torch.compile fails: {error:#}"),
                Err(error) => return Err(error.context("PyTorch")),
            }
        }
    }
    // Strong scaling, then weak scaling.
    for precision in precisions {
        for batch in [preset.batch / cpus.len(), preset.batch] {
            let parallelism = DataParallelism::Replicated;
            let each: Vec<&[usize]> = cpus.chunks(1).collect();
            groups.push(Workers::regatta_ranks(preset, precision, parallelism, &each, batch)?);
        }
    }
    Ok(groups)
}
