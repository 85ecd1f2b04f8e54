//! What `regatta bench all-reduce` says of 8 bytes between two ranks of this machine, beside a bare
//! loop over the same communicator: in processes of their own that are bound alike, with as many
//! calls, by turns. The least of each counts: whatever else the machine does only adds to it.
//!
//! Arguments: the number of turns, by itself 10.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regatta_comm::join::Settings;
use regatta_comm::{Collectives, Comm, ReduceOp, host};
use regatta_model::{BenchResult, Measurement, document};

/// Says that this process is a rank of the bare loop.
const RANK: &str = "REGATTA_BENCH_RANK";
const CALLS: u32 = 20_000;
const WARM_UP: u32 = 1000;
/// 8 bytes.
const COUNT: usize = 2;
const TURNS: u32 = 10;

/// Microseconds of a call with two buffers, and with one.
type Latency = [f64; 2];

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return be_a_rank();
    }
    let turns = match std::env::args().nth(1) {
        Some(word) => word.parse().with_context(|| format!("{word} is no number of turns"))?,
        None => TURNS,
    };
    let own = std::env::current_exe()?;
    let regatta = own.with_file_name("regatta");
    if !regatta.is_file() {
        bail!("{}: not built; run `cargo xtask bench`", regatta.display());
    }
    let folder = Folder(std::env::temp_dir().join(format!("regatta-bench-{}", std::process::id())));
    let mut least = [[f64::INFINITY; 2]; 2];
    for _ in 0..turns {
        let turn = [benchmark(&regatta, &folder.0)?, bare(&regatta, &own, &folder.0)?];
        for (least, new) in least.iter_mut().flatten().zip(turn.as_flattened()) {
            *least = least.min(*new);
        }
    }
    let [ours, bare] = least;
    println!("all-reduce of 8 bytes, 2 ranks, {CALLS} calls, the least of {turns} turns");
    for (place, (ours, bare)) in ["out-of-place", "in-place"].iter().zip(ours.iter().zip(bare)) {
        let ratio = ours / bare;
        println!("  {place}: {ours:.3} us, a bare loop {bare:.3} us: {ratio:.3} times as long");
    }
    Ok(())
}

/// What `regatta bench` measures.
fn benchmark(regatta: &Path, folder: &Path) -> Result<Latency> {
    let mut command = Command::new(regatta);
    command.args(["bench", "all-reduce", "-b", "8", "-e", "8", "-c", "0", "--backend", "host"]);
    command.args(["-n", &CALLS.to_string(), "-w", &WARM_UP.to_string(), "--ranks", "2"]);
    ended(command.arg("--run-dir").arg(folder))?;
    let file = folder.join("bench.json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let result: BenchResult = document::from_json(&text)?;
    let row = result.tables.first().and_then(|table| table.rows.first()).context("no size")?;
    let time = |one: &Option<Measurement>| one.as_ref().and_then(|one| one.time_us);
    let (out_of_place, in_place) = (time(&row.out_of_place), time(&row.in_place));
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok([out_of_place.context("no time")?, in_place.context("no time")?])
}

/// What the loop below measures, with ranks started as those of `regatta bench` are.
fn bare(regatta: &Path, own: &Path, folder: &Path) -> Result<Latency> {
    let mut command = Command::new(regatta);
    command.args(["launch", "--oversubscribe", "--no-gpus", "--ranks", "2", "--run-dir"]);
    ended(command.arg(folder).arg("--").arg(own).env(RANK, "1"))?;
    let text = std::fs::read_to_string(folder.join("log/rank-0.out")).context("rank 0's log")?;
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    let times: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    times.try_into().map_err(|_| anyhow::anyhow!("rank 0 wrote {text:?}"))
}

fn ended(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A rank of the bare loop; the first writes the mean of all ranks.
fn be_a_rank() -> Result<()> {
    let comm = host::join(Settings::from_environment()?)?;
    let (input, mut output) = ([1.0f32; COUNT], [0.0f32; COUNT]);
    let out_of_place = timed(&comm, || comm.all_reduce_into(&input, &mut output, ReduceOp::Sum))?;
    // What does not grow, however often it is summed up.
    let mut data = [0.0f32; COUNT];
    let in_place = timed(&comm, || comm.all_reduce(&mut data, ReduceOp::Sum))?;
    let mut all = [out_of_place, in_place];
    comm.all_reduce(&mut all, ReduceOp::Sum)?;
    if comm.rank() == 0 {
        all.iter().for_each(|sum| println!("{}", sum / f64::from(comm.size())));
    }
    Ok(())
}

/// Microseconds of a call.
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

/// A folder that goes with what is left in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
