//! Collectives between ranks of this machine, beside those of Open MPI, MPICH and gloo, as far as
//! they are installed: f32, each size, the median of interleaved runs, and what a plain copy of the
//! same bytes takes.
//!
//! MPI's programs are compiled with `mpicc.openmpi` and `mpicc.mpich`; gloo is that of the Python
//! with PyTorch in `PATH`, or the one that `REGATTA_BENCH_PYTHON` names. Arguments: the numbers of
//! ranks, by themselves 2 and 4.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regatta_comm::{Collectives, Comm, ReduceOp, host, join::Settings};

/// Says that this process is a rank.
const RANK: &str = "REGATTA_BENCH_RANK";
/// How often each has its turn.
const TURNS: usize = 3;
/// Rounds of a turn, of which the median counts, as the peers' programs have it.
const ROUNDS: usize = 5;
const NAMES: [&str; 4] = ["all-reduce", "all-gather", "reduce-scatter", "broadcast"];

/// Seconds by operation and bytes.
type Table = BTreeMap<(String, u64), Vec<f64>>;

/// Repeats of a round, and bytes.
fn sizes() -> Vec<(u32, u64)> {
    let all = [3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28].map(|bits| 1u64 << bits);
    let repeats = |bytes: u64| ((64u64 << 20) / bytes.max(1)).clamp(2, 2000) as u32;
    all.into_iter().map(|bytes| (repeats(bytes), bytes)).collect()
}

fn main() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return be_a_rank();
    }
    let given: Vec<u32> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let folder = std::env::temp_dir().join(format!("regatta-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let ended = if given.is_empty() { vec![2, 4] } else { given }
        .into_iter()
        .try_for_each(|ranks| compare(ranks, &folder));
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    ended
}

/// Somebody's collectives.
struct Peer {
    name: &'static str,
    run: Box<dyn Fn() -> Result<String>>,
}

fn compare(ranks: u32, folder: &Path) -> Result<()> {
    let (peers, missing) = peers(ranks, folder)?;
    let mut tables: Vec<Table> = peers.iter().map(|_| Table::new()).collect();
    for _ in 0..TURNS {
        for (peer, table) in peers.iter().zip(&mut tables) {
            read(&(peer.run)().with_context(|| peer.name.to_owned())?, table);
        }
    }
    println!("{ranks} ranks on {} cores", std::thread::available_parallelism()?);
    for name in missing {
        println!("not installed: {name}");
    }
    print(&peers, &mut tables);
    Ok(())
}

/// Takes the lines "operation bytes seconds" of a run.
fn read(text: &str, table: &mut Table) {
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, bytes, seconds] = words[..]
            && let (Ok(bytes), Ok(seconds)) = (bytes.parse(), seconds.parse())
        {
            table.entry((name.to_owned(), bytes)).or_default().push(seconds);
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print(peers: &[Peer], tables: &mut [Table]) {
    let names: String = peers.iter().skip(1).map(|p| format!("{:>22}", p.name)).collect();
    println!("{:<15}{:>11}{:>13}{names}{:>12}", "operation", "bytes", "ours", "copy");
    for name in NAMES {
        for (_, bytes) in sizes() {
            let key = (name.to_owned(), bytes);
            let mut times = tables.iter_mut().map(|t| t.get_mut(&key).map(|t| median(t)));
            let Some(Some(ours)) = times.next() else { continue };
            let others: String = times.map(|t| beside(ours, t)).collect();
            let copy = copy_seconds(bytes) * 1e6;
            println!("{name:<15}{bytes:>11}{:>10.2} µs{others}{copy:>9.2} µs", ours * 1e6);
        }
    }
}

/// A peer's time, and how many times as fast we are.
fn beside(ours: f64, theirs: Option<f64>) -> String {
    match theirs {
        Some(theirs) => format!("{:>11.2} µs {:>6.2}x", theirs * 1e6, theirs / ours),
        None => format!("{:>22}", "-"),
    }
}

fn copy_seconds(bytes: u64) -> f64 {
    let (from, mut to) = (vec![1u8; bytes as usize], vec![0u8; bytes as usize]);
    let repeats = ((64u64 << 20) / bytes.max(1)).clamp(3, 2000);
    let once = || {
        let start = Instant::now();
        for _ in 0..repeats {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
        start.elapsed().as_secs_f64() / repeats as f64
    };
    median(&mut std::iter::repeat_with(once).take(ROUNDS).collect::<Vec<_>>())
}

/// What all are called with: repeats and bytes, in pairs.
fn arguments() -> Vec<String> {
    sizes().iter().flat_map(|(repeats, bytes)| [repeats.to_string(), bytes.to_string()]).collect()
}

fn peers(ranks: u32, folder: &Path) -> Result<(Vec<Peer>, Vec<&'static str>)> {
    let regatta = std::env::current_exe()?.with_file_name("regatta");
    if !regatta.is_file() {
        bail!("{}: not built; run `cargo xtask bench`", regatta.display());
    }
    let own = std::env::current_exe()?;
    let launched = |name: &'static str, program: Vec<PathBuf>| {
        let (regatta, folder) = (regatta.clone(), folder.to_owned());
        let run = move || launch(&regatta, ranks, &folder.join("run"), &program);
        Peer { name, run: Box::new(run) as Box<dyn Fn() -> Result<String>> }
    };
    let mut all = vec![launched("ours", vec![own])];
    let mut missing = Vec::new();
    for (name, compiler, launcher) in [
        ("Open MPI", "mpicc.openmpi", ["mpirun.openmpi", "--oversubscribe"].as_slice()),
        ("MPICH", "mpicc.mpich", &["mpiexec.hydra"]),
    ] {
        match compiled(compiler, &folder.join(compiler)) {
            Some(program) => {
                let run = move || mpi(launcher, ranks, &program);
                all.push(Peer { name, run: Box::new(run) });
            }
            None => missing.push(name),
        }
    }
    match python() {
        Some(python) => all.push(launched("gloo", vec![python, source("collectives.py")])),
        None => missing.push("gloo"),
    }
    Ok((all, missing))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// The MPI program, if it can be compiled.
fn compiled(compiler: &str, program: &Path) -> Option<PathBuf> {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(program).arg(source("collectives.c")).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success()).then(|| program.to_owned())
}

fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGATTA_BENCH_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|s| s.success()).then_some(python)
}

fn mpi(launcher: &[&str], ranks: u32, program: &Path) -> Result<String> {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).args(["-n", &ranks.to_string()]).arg(program).args(arguments());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let out = command.stderr(Stdio::inherit()).output().context(launcher[0].to_owned())?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a program under `regatta launch`; what rank 0 wrote is in its log.
fn launch(regatta: &Path, ranks: u32, folder: &Path, program: &[PathBuf]) -> Result<String> {
    let mut command = Command::new(regatta);
    command.args(["launch", "--oversubscribe", "--no-gpus", "-n", &ranks.to_string()]);
    command.arg("--run-dir").arg(folder).arg("--").args(program).args(arguments());
    let out = command.env(RANK, "1").output().context("regatta launch")?;
    if !out.status.success() {
        bail!("{}", String::from_utf8_lossy(&out.stderr));
    }
    let text = std::fs::read_to_string(folder.join("log/rank-0.out")).context("rank 0's log")?;
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok(text)
}

fn be_a_rank() -> Result<()> {
    let comm = host::join(Settings::from_environment()?)?;
    let pairs: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    for name in NAMES {
        for pair in pairs.chunks_exact(2) {
            let seconds = timed(&comm, name, pair[0], pair[1] as usize / 4)?;
            if comm.rank() == 0 {
                println!("{name} {} {seconds:.9}", pair[1]);
            }
        }
    }
    Ok(())
}

fn timed(comm: &dyn Comm, name: &str, repeats: u64, count: usize) -> Result<f64> {
    let part = count / comm.size() as usize;
    let (mut data, mut out) = (vec![1.0f32; count], vec![0.0f32; count]);
    let mut once = || match name {
        "all-reduce" => comm.all_reduce_into(&data, &mut out, ReduceOp::Sum),
        "all-gather" => comm.all_gather(&data[..part], &mut out[..part * comm.size() as usize]),
        "reduce-scatter" => {
            let all = &data[..part * comm.size() as usize];
            comm.reduce_scatter(all, &mut out[..part], ReduceOp::Sum)
        }
        _ => comm.broadcast(&mut data, 0),
    };
    (0..2).try_for_each(|_| once())?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        comm.barrier()?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| once())?;
        let mut slowest = [start.elapsed().as_secs_f64() / repeats as f64];
        comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        rounds.push(slowest[0]);
    }
    Ok(median(&mut rounds))
}
