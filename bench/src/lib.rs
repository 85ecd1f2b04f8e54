//! Benchmarks against peers in the same run, because machines are shared and noisy: a change must
//! not worsen the ratio. Each result is saved at once, and the next run shows the change.

pub mod nccl_compare;
pub mod processes;
pub mod sim_agents;
pub mod sim_ranks;

use std::hint::black_box;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_model::run_folder::{BENCH_RESULT, LOG, log_name};
use regatta_model::{BenchResult, BenchRow, document};
use regatta_predict::shape::{Family, ModelShape};

/// Median and quartiles of many runs.
#[derive(Debug, Clone, Copy)]
pub struct RunTimes {
    /// First quartile.
    pub low: Duration,
    /// Median.
    pub median: Duration,
    /// Third quartile.
    pub high: Duration,
}

impl RunTimes {
    /// Statistics of at least one run.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

/// Runs `work` for about a second, at least five times, and returns its times.
pub fn measure<T>(mut work: impl FnMut() -> T) -> RunTimes {
    black_box(work());
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (start.elapsed() < Duration::from_secs(1) && times.len() < 10_000) {
        let one = Instant::now();
        black_box(work());
        times.push(one.elapsed());
    }
    RunTimes::of(times)
}

/// GPT-2 with the vocabulary of `gpt2`, padded.
pub fn gpt2_shape(num_layers: usize, num_heads: usize, hidden_size: usize) -> ModelShape {
    ModelShape {
        family: Family::Gpt2,
        seq_len: 1024,
        hidden_size,
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        intermediate_size: 4 * hidden_size,
        // A multiple of 64, because PyTorch does not pad it for tensor cores.
        vocab_size: 50_304,
        tie_embeddings: true,
        bias: true,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
    }
}

/// One of several interleaved workloads.
pub struct Contender<'a> {
    /// Runs in every `every`-th round, starting with the first: slow work needs fewer runs.
    pub every: usize,
    /// Runs once and returns the time without set-up and tear-down.
    pub work: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

/// Interleaves the workloads, so that background load affects all of them alike.
pub fn interleave(contenders: &mut [Contender<'_>], rounds: usize) -> Result<Vec<RunTimes>> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..rounds.max(1) {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            if round % contender.every.max(1) == 0 {
                times.push((contender.work)()?);
            }
        }
    }
    Ok(times.into_iter().map(RunTimes::of).collect())
}

/// Prints a case beside its peers and the previous run, and saves it.
pub fn report(case: &str, ours: RunTimes, peers: &[(&str, RunTimes)]) -> Result<()> {
    let show = |time: Duration| match time.as_secs_f64() * 1e6 {
        us if us < 1000.0 => format!("{us:.2} us"),
        us => format!("{:.3} ms", us / 1e3),
    };
    let spread = |t: RunTimes| format!("{} ({} to {})", show(t.median), show(t.low), show(t.high));
    println!("{case}: {}", spread(ours));
    for (name, times) in peers {
        let ratio = times.median.as_secs_f64() / ours.median.as_secs_f64();
        println!("  {ratio:.2} times as fast as {name}: {}", spread(*times));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&target).join("regatta-bench");
    let file = folder.join(case.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let before = std::fs::read_to_string(&file).ok().and_then(|t| t.trim().parse::<f64>().ok());
    if let Some(before) = before {
        let change = ours.median.as_secs_f64() / before - 1.0;
        let before = show(Duration::from_secs_f64(before));
        println!("  {:+.1} % compared with the previous run ({before})", change * 100.0);
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let text = format!("{}\n", ours.median.as_secs_f64());
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

/// An argument of this program that is a number, from position 1, or a default.
pub fn number_argument<N: FromStr<Err = ParseIntError>>(at: usize, default: N) -> Result<N> {
    let invalid = |text: &str| format!("{text} is not a number");
    match std::env::args().nth(at) {
        Some(text) => text.parse().with_context(|| invalid(&text)),
        None => Ok(default),
    }
}

/// The largest resident set of this process.
pub fn peak_resident_kb() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().split(' ').next()).context("no VmHWM")?;
    Ok(number.parse()?)
}

/// The `regatta` binary next to this program.
pub fn regatta_binary() -> Result<PathBuf> {
    let regatta = std::env::current_exe()?.with_file_name("regatta");
    if !regatta.is_file() {
        bail!("{}: not built; run `cargo xtask bench`", regatta.display());
    }
    Ok(regatta)
}

/// The Python of `REGATTA_BENCH_PYTHON`, or `python3`.
pub fn python() -> PathBuf {
    std::env::var_os("REGATTA_BENCH_PYTHON").unwrap_or_else(|| "python3".into()).into()
}

/// [`python`], if it can import PyTorch.
pub fn python_with_torch() -> Option<PathBuf> {
    let mut command = Command::new(python());
    let status = command.args(["-c", "import torch"]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then(python)
}

/// A program of a peer.
pub fn peer_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// The standard output of a command that must succeed.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!("{command:?}: {stdout}{}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(stdout)
}

/// The first row that `regatta bench` wrote to a run folder.
pub fn first_row(run_dir: &Path) -> Result<BenchRow> {
    let file = run_dir.join(BENCH_RESULT);
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let result: BenchResult = document::from_json(&text)?;
    result.tables.into_iter().flat_map(|table| table.rows).next().context("no size")
}

/// Removes a run folder and returns rank 0's log.
pub fn take_log(run_dir: &Path) -> Result<String> {
    let text = std::fs::read_to_string(run_dir.join(LOG).join(log_name(0, 0, false)))
        .context("rank 0's log")?;
    std::fs::remove_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    Ok(text)
}

/// A temporary folder, removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates a folder that is unique to this process.
    pub fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("regatta-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_run_in_every_nth_round() {
        let seen = std::cell::RefCell::new(String::new());
        let contender = |name: char, every: usize, time: u64| {
            let seen = &seen;
            let work = move || {
                seen.borrow_mut().push(name);
                Ok(Duration::from_millis(time))
            };
            Contender { every, work: Box::new(work) }
        };
        let times = interleave(&mut [contender('a', 1, 3), contender('b', 2, 50)], 4).unwrap();
        assert_eq!(*seen.borrow(), "abaaba");
        assert_eq!((times[0].median, times[1].median.as_millis()), (Duration::from_millis(3), 50));
    }
}
