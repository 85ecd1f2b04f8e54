//! Measures a piece of work against a peer in the same run, because machines are shared and noisy:
//! the ratio is what a change must not worsen. Each result is kept as soon as it is there, and the
//! next run shows it beside its own.

pub mod flock;

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

impl Times {
    /// Of at least one run.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }
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
    Times::of(times)
}

/// Work that takes turns with others.
pub struct Turn<'a> {
    /// It has its turn in every so-manieth round, the first included: slow work needs fewer.
    pub every: usize,
    /// Does it once, and tells how long that took, less what it did before and after.
    pub work: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

/// Lets all take turns, so that whatever else the machine does meanwhile meets each alike.
pub fn take_turns(turns: &mut [Turn<'_>], rounds: usize) -> Result<Vec<Times>> {
    let mut times = vec![Vec::new(); turns.len()];
    for round in 0..rounds.max(1) {
        for (turn, times) in turns.iter_mut().zip(&mut times) {
            if round % turn.every.max(1) == 0 {
                times.push((turn.work)()?);
            }
        }
    }
    Ok(times.into_iter().map(Times::of).collect())
}

/// Prints a case beside its peers and beside the last run, and keeps it.
pub fn report(case: &str, ours: Times, peers: &[(&str, Times)]) -> Result<()> {
    let ms = |d: Duration| format!("{:.3} ms", d.as_secs_f64() * 1e3);
    let spread = |t: Times| format!("{} ({} to {})", ms(t.median), ms(t.low), ms(t.high));
    println!("{case}: {}", spread(ours));
    for (name, times) in peers {
        let ratio = times.median.as_secs_f64() / ours.median.as_secs_f64();
        println!("  {ratio:.2} times as fast as {name}: {}", spread(*times));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_as_often_as_said() {
        let seen = std::cell::RefCell::new(String::new());
        let turn = |name: char, every: usize, time: u64| Turn {
            every,
            work: Box::new({
                let seen = &seen;
                move || {
                    seen.borrow_mut().push(name);
                    Ok(Duration::from_millis(time))
                }
            }),
        };
        let times = take_turns(&mut [turn('a', 1, 3), turn('b', 2, 50)], 4).unwrap();
        assert_eq!(*seen.borrow(), "abaaba");
        assert_eq!((times[0].median, times[1].median.as_millis()), (Duration::from_millis(3), 50));
    }
}
