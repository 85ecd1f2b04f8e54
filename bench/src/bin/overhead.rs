//! Measurement overhead: `regatta bench all-reduce` of 8 bytes between two ranks of this machine,
//! compared with a bare loop over the same communicator, in separate processes with the same
//! binding and number of calls, interleaved. Uses minimum times, because background load only adds
//! to them.
//!
//! Argument: the number of rounds, 10 by default.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_benchmarks::{
    TempDir, first_row, number_argument, regatta_binary, stdout_of, take_log,
};
use regatta_comm::bootstrap::BootstrapConfig;
use regatta_comm::{Collectives, Comm, ReduceOp, hierarchical};
use regatta_model::Measurement;

/// Set in ranks of the bare loop.
const RANK: &str = "REGATTA_BENCH_RANK";
const CALLS: u32 = 20_000;
const WARM_UP: u32 = 1000;
/// 8 bytes.
const COUNT: usize = 2;
const ROUNDS: u32 = 10;

/// Microseconds per call out of place and in place.
type Latency = [f64; 2];

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return run_rank();
    }
    let rounds = number_argument(1, ROUNDS)?;
    let (own, regatta, dir) = (std::env::current_exe()?, regatta_binary()?, TempDir::new()?);
    let run_dir = dir.path().join("run");
    let mut minimum = [[f64::INFINITY; 2]; 2];
    for _ in 0..rounds {
        let latencies = [benchmark(&regatta, &run_dir)?, bare(&regatta, &own, &run_dir)?];
        for (minimum, new) in minimum.iter_mut().flatten().zip(latencies.as_flattened()) {
            *minimum = minimum.min(*new);
        }
    }
    let [ours, bare] = minimum;
    println!("all-reduce of 8 bytes, 2 ranks, {CALLS} calls, minimum of {rounds} rounds");
    for (place, (ours, bare)) in ["out-of-place", "in-place"].iter().zip(ours.iter().zip(bare)) {
        let ratio = ours / bare;
        println!("  {place}: {ours:.3} us, bare loop {bare:.3} us, ratio {ratio:.3}");
    }
    Ok(())
}

/// The latency that `regatta bench` reports.
fn benchmark(regatta: &Path, folder: &Path) -> Result<Latency> {
    let mut command = Command::new(regatta);
    command.args(["bench", "all-reduce", "-b", "8", "-e", "8", "-c", "0", "--backend", "host"]);
    command.args(["-n", &CALLS.to_string(), "-w", &WARM_UP.to_string(), "--ranks", "2"]);
    stdout_of(command.arg("--run-dir").arg(folder))?;
    let row = first_row(folder)?;
    let time = |one: &Option<Measurement>| one.as_ref().and_then(|one| one.time_us);
    let (out_of_place, in_place) = (time(&row.out_of_place), time(&row.in_place));
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok([out_of_place.context("no time")?, in_place.context("no time")?])
}

/// The latency of the bare loop, with ranks launched like those of `regatta bench`.
fn bare(regatta: &Path, own: &Path, folder: &Path) -> Result<Latency> {
    let mut command = Command::new(regatta);
    command.args(["launch", "--oversubscribe", "--no-gpus", "--ranks", "2", "--run-dir"]);
    stdout_of(command.arg(folder).arg("--").arg(own).env(RANK, "1"))?;
    let text = take_log(folder)?;
    let times: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    times.try_into().map_err(|_| anyhow::anyhow!("rank 0 wrote {text:?}"))
}

/// A rank of the bare loop; rank 0 prints the mean of all ranks.
fn run_rank() -> Result<()> {
    let comm = hierarchical::join(BootstrapConfig::from_env()?)?;
    let (input, mut output) = ([1.0f32; COUNT], [0.0f32; COUNT]);
    let out_of_place = timed(&comm, || comm.all_reduce_into(&input, &mut output, ReduceOp::Sum))?;
    // Zeros do not grow when they are summed repeatedly.
    let mut data = [0.0f32; COUNT];
    let in_place = timed(&comm, || comm.all_reduce(&mut data, ReduceOp::Sum))?;
    let mut all = [out_of_place, in_place];
    comm.all_reduce(&mut all, ReduceOp::Sum)?;
    if comm.rank() == 0 {
        all.iter().for_each(|sum| println!("{}", sum / f64::from(comm.size())));
    }
    Ok(())
}

/// Microseconds per call.
fn timed<E: std::error::Error + Send + Sync + 'static>(
    comm: &dyn Comm,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<f64> {
    (0..WARM_UP).try_for_each(|_| call())?;
    comm.barrier()?;
    let start = Instant::now();
    (0..CALLS).try_for_each(|_| call())?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS))
}
