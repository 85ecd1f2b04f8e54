//! Measures a piece of work against a peer in the same run, because machines are shared and noisy:
//! the ratio is what a change must not worsen. Each result is kept as soon as it is there, and the
//! next run shows it beside its own.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The time of one run of some work: median and quartiles of many.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// A quarter of the runs were faster.
    pub low: Duration,
    /// Half of them.
    pub median: Duration,
    /// Three quarters.
    pub high: Duration,
}

/// Runs `work` for about a second, at least five times, and returns its times.
pub fn measure<T>(mut work: impl FnMut() -> T) -> Times {
    black_box(work());
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (start.elapsed() < Duration::from_secs(1) && times.len() < 10_000) {
        let one = Instant::now();
        black_box(work());
        times.push(one.elapsed());
    }
    times.sort_unstable();
    let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
    Times { low: at(1), median: at(2), high: at(3) }
}

/// Prints a case beside its peer and beside the last run, and keeps it.
pub fn report(case: &str, ours: Times, peer: Option<(&str, Times)>) -> Result<()> {
    let ms = |d: Duration| format!("{:.3} ms", d.as_secs_f64() * 1e3);
    let spread = |t: Times| format!("{} ({} to {})", ms(t.median), ms(t.low), ms(t.high));
    println!("{case}: {}", spread(ours));
    if let Some((name, times)) = peer {
        let ratio = times.median.as_secs_f64() / ours.median.as_secs_f64();
        println!("  {ratio:.2} times as fast as {name}: {}", spread(times));
    }
    let file = kept(case);
    if let Some(before) =
        std::fs::read_to_string(&file).ok().and_then(|t| t.trim().parse::<f64>().ok())
    {
        let change = ours.median.as_secs_f64() / before - 1.0;
        println!("  {:+.1} % against the last run ({:.3} ms)", change * 100.0, before * 1e3);
    }
    let folder = file.parent().context("a folder for results")?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    std::fs::write(&file, format!("{}\n", ours.median.as_secs_f64()))
        .with_context(|| file.display().to_string())
}

fn kept(case: &str) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("regatta-bench").join(case.replace(|c: char| !c.is_ascii_alphanumeric(), "-"))
}
