//! `regatta bench --backend nccl` compared with a PyTorch loop over the same NCCL, interleaved,
//! minimum times: both measure the same and should agree.
//!
//! `nccl [RANKS [ROUNDS]]`; ranks may share one GPU. Uses the `regatta` binary next to this program
//! and the PyTorch of `REGATTA_BENCH_PYTHON` or `python3`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use regatta_benchmarks::TempDir;
use regatta_model::{BenchResult, document};

const SIZES: [u64; 5] = [8, 4096, 262_144, 2_097_152, 16_777_216];
const ITERATIONS: u32 = 50;
const LOOP: &str = include_str!("../../peers/nccl.py");

/// Microseconds by operation and size.
type Times = BTreeMap<(String, u64), f64>;

fn main() -> Result<()> {
    let number = |at: usize, or: u32| std::env::args().nth(at).map_or(Ok(or), |text| text.parse());
    let (ranks, rounds) = (number(1, 2)?, number(2, 5)?);
    let regatta = std::env::current_exe()?.with_file_name("regatta");
    if !regatta.is_file() {
        bail!("{}: not built; run `cargo build --release`", regatta.display());
    }
    let folder = TempDir::new()?;
    let (mut ours, mut theirs) = (Times::new(), Times::new());
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        keep_minimum(&mut ours, regatta_times(&regatta, folder.path(), ranks, round)?);
        keep_minimum(&mut theirs, torch_times(&regatta, folder.path(), ranks, round)?);
    }
    println!("{ranks} ranks, minimum of {rounds} rounds of {ITERATIONS} calls, in microseconds");
    for ((name, size), ours) in &ours {
        if let Some(theirs) = theirs.get(&(name.clone(), *size)) {
            let ratio = ours / theirs;
            println!(
                "{name:>15} {size:>9} B: regatta {ours:>9.2}, PyTorch {theirs:>9.2}, ratio {ratio:.3}"
            );
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
fn launch(regatta: &Path, ranks: u32, run: &Path, command: &[&str]) -> Result<String> {
    let mut launch = Command::new(regatta);
    launch.args(["launch", "-n", &ranks.to_string(), "--oversubscribe", "--rank", "0"]);
    launch.arg("--run-dir").arg(run).args(["--wrap", "env NCCL_HOSTID=host{rank}", "--"]);
    let out = launch.args(command).output().context("regatta launch")?;
    if !out.status.success() {
        bail!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
    let log = run.join("log/rank-0.out");
    std::fs::read_to_string(&log).with_context(|| log.display().to_string())
}

fn regatta_times(regatta: &Path, folder: &Path, ranks: u32, round: u32) -> Result<Times> {
    let mut times = Times::new();
    let binary = regatta.to_str().context("the path is not UTF-8")?;
    let iterations = ITERATIONS.to_string();
    for size in SIZES {
        let (run, size) = (folder.join(format!("ours-{round}-{size}")), size.to_string());
        let out = folder.join("result.json");
        let file = out.to_str().context("the path is not UTF-8")?;
        let options = [
            "-b",
            &size,
            "-e",
            &size,
            "-f",
            "2",
            "-n",
            &iterations,
            "--backend",
            "nccl",
            "-J",
            file,
        ];
        let command: Vec<&str> = [binary, "bench", "all"].into_iter().chain(options).collect();
        launch(regatta, ranks, &run, &command)?;
        let result: BenchResult = document::from_json(&std::fs::read_to_string(&out)?)?;
        for table in &result.tables {
            // PyTorch's all-reduce and broadcast are in place, its other collectives are not.
            let row = table.rows.first().context("no row")?;
            let in_place = matches!(table.operation.name(), "all-reduce" | "broadcast");
            let measured = if in_place { &row.in_place } else { &row.out_of_place };
            // With 8 bytes no rank has a block that is a multiple of 16 bytes.
            let time = measured.as_ref().filter(|_| row.size_bytes > 0).and_then(|m| m.time_us);
            if let Some(time) = time {
                times.insert((table.operation.name().to_owned(), size.parse()?), time);
            }
        }
    }
    Ok(times)
}

fn torch_times(regatta: &Path, folder: &Path, ranks: u32, round: u32) -> Result<Times> {
    let python = std::env::var("REGATTA_BENCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = folder.join("nccl.py");
    std::fs::write(&script, LOOP).with_context(|| script.display().to_string())?;
    let script = script.to_str().context("the path is not UTF-8")?;
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let command = [&python, script, &sizes, &ITERATIONS.to_string()];
    let text = launch(regatta, ranks, &folder.join(format!("theirs-{round}")), &command)?;
    let line = text.lines().find_map(|line| line.strip_prefix("times ")).context("no times")?;
    let named: BTreeMap<String, f64> = serde_json::from_str(line)?;
    let key = |(name, time): (String, f64)| {
        let (name, size) = name.split_once(' ')?;
        Some(((name.to_owned(), size.parse().ok()?), time))
    };
    Ok(named.into_iter().filter_map(key).collect())
}
