//! `regatta bench --backend nccl` compared with a PyTorch loop over the same NCCL, interleaved,
//! minimum times: both measure the same and should agree.
//!
//! `nccl [RANKS [ROUNDS]]`; ranks may share one GPU. Uses the `regatta` binary next to this program
//! and the PyTorch of `REGATTA_BENCH_PYTHON` or `python3`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use regatta_benchmarks::{
    TempDir, number_argument, peer_source, python, regatta_binary, stdout_of, take_log,
};
use regatta_model::{BenchResult, Operation, document};

const SIZES: [u64; 5] = [8, 4096, 262_144, 2_097_152, 16_777_216];
const ITERATIONS: u32 = 50;

/// Microseconds by operation and size.
type Times = BTreeMap<(String, u64), f64>;

fn main() -> Result<()> {
    let (ranks, rounds) = (number_argument(1, 2)?, number_argument(2, 5)?);
    let (regatta, folder) = (regatta_binary()?, TempDir::new()?);
    let (mut ours, mut theirs) = (Times::new(), Times::new());
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        keep_minimum(&mut ours, regatta_times(&regatta, folder.path(), ranks)?);
        keep_minimum(&mut theirs, torch_times(&regatta, folder.path(), ranks)?);
    }
    println!("{ranks} ranks, minimum of {rounds} rounds of {ITERATIONS} calls, in microseconds");
    for ((name, size), ours) in &ours {
        if let Some(theirs) = theirs.get(&(name.clone(), *size)) {
            let (ratio, times) = (ours / theirs, format!("{ours:>9.2}, PyTorch {theirs:>9.2}"));
            println!("{name:>15} {size:>9} B: regatta {times}, ratio {ratio:.3}");
        }
    }
    Ok(())
}

/// Keeps the minimum time of each operation and size.
fn keep_minimum(all: &mut Times, more: Times) {
    for (key, time) in more {
        let kept = all.entry(key).or_insert(time);
        *kept = kept.min(time);
    }
}

/// Launches ranks that look like separate hosts, so that they may share a GPU, and returns rank 0's
/// output.
fn launch(regatta: &Path, folder: &Path, ranks: u32, command: &[&OsStr]) -> Result<String> {
    let run_dir = folder.join("run");
    let mut launch = Command::new(regatta);
    launch.args(["launch", "-n", &ranks.to_string(), "--oversubscribe", "--rank", "0"]);
    launch.arg("--run-dir").arg(&run_dir).args(["--wrap", "env NCCL_HOSTID=host{rank}", "--"]);
    stdout_of(launch.args(command))?;
    take_log(&run_dir)
}

fn regatta_times(regatta: &Path, folder: &Path, ranks: u32) -> Result<Times> {
    let mut times = Times::new();
    let out = folder.join("times.json");
    for size in SIZES {
        let options = format!("-b {size} -e {size} -f 2 -n {ITERATIONS} --backend nccl -J");
        let mut command: Vec<&OsStr> = vec![regatta.as_ref(), "bench".as_ref(), "all".as_ref()];
        command.extend(options.split(' ').map(OsStr::new).chain([out.as_ref()]));
        launch(regatta, folder, ranks, &command)?;
        let result: BenchResult = document::from_json(&std::fs::read_to_string(&out)?)?;
        for table in &result.tables {
            // PyTorch's all-reduce and broadcast are in place, its other collectives are not.
            let row = table.rows.first().context("no row")?;
            let in_place = matches!(table.operation, Operation::AllReduce | Operation::Broadcast);
            let measured = if in_place { &row.in_place } else { &row.out_of_place };
            // With 8 bytes no rank has a block that is a multiple of 16 bytes.
            let time = measured.as_ref().filter(|_| row.size_bytes > 0).and_then(|m| m.time_us);
            if let Some(time) = time {
                times.insert((table.operation.to_string(), size), time);
            }
        }
    }
    Ok(times)
}

fn torch_times(regatta: &Path, folder: &Path, ranks: u32) -> Result<Times> {
    let (python, script) = (python(), peer_source("nccl.py"));
    let (sizes, iterations) =
        (SIZES.map(|size| size.to_string()).join(","), ITERATIONS.to_string());
    let command = [python.as_ref(), script.as_ref(), sizes.as_ref(), iterations.as_ref()];
    let text = launch(regatta, folder, ranks, &command)?;
    let line = text.lines().find_map(|line| line.strip_prefix("times ")).context("no times")?;
    let named: BTreeMap<String, f64> = serde_json::from_str(line)?;
    let key = |(name, time): (String, f64)| {
        let (name, size) = name.split_once(' ')?;
        Some(((name.to_owned(), size.parse().ok()?), time))
    };
    Ok(named.into_iter().filter_map(key).collect())
}
