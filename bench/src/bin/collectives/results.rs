//! Collects and prints results.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use crate::{NAMES, ROUNDS};

/// Statistic over the rounds.
#[derive(Debug, Clone, Copy)]
pub enum Statistic {
    /// The median.
    Median,
    /// The minimum: without background load.
    Minimum,
}

impl Statistic {
    fn of(self, times: &[f64]) -> Option<f64> {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        let at = match self {
            Self::Median => times.len() / 2,
            Self::Minimum => 0,
        };
        times.get(at).copied()
    }
}

/// Seconds by operation and bytes.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<(String, u64), Vec<f64>>);

impl Results {
    /// Parses the lines "operation bytes seconds" of a run.
    pub fn read(&mut self, text: &str) {
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [name, bytes, seconds] = words[..]
                && let (Ok(bytes), Ok(seconds)) = (bytes.parse(), seconds.parse())
            {
                self.0.entry((name.to_owned(), bytes)).or_default().push(seconds);
            }
        }
    }

    fn seconds(&self, name: &str, bytes: u64, statistic: Statistic) -> Option<f64> {
        self.0.get(&(name.to_owned(), bytes)).and_then(|times| statistic.of(times))
    }
}

/// One line per operation and size: ours, the peers and a copy.
pub fn print(names: &[&str], results: &[Results], statistic: Statistic, sizes: &[u64]) {
    let head: String = names.iter().skip(1).map(|name| format!("{name:>22}")).collect();
    println!("{:<15}{:>11}{:>13}{head}{:>12}", "operation", "bytes", "ours", "copy");
    for name in NAMES {
        for &bytes in sizes {
            let mut times = results.iter().map(|results| results.seconds(name, bytes, statistic));
            let Some(Some(ours)) = times.next() else { continue };
            let others: String = times.map(|theirs| beside(ours, theirs)).collect();
            let copy = copy_seconds(bytes, statistic) * 1e6;
            println!("{name:<15}{bytes:>11}{:>10.2} µs{others}{copy:>9.2} µs", ours * 1e6);
        }
    }
}

/// A peer's time and our speed-up.
fn beside(ours: f64, theirs: Option<f64>) -> String {
    match theirs {
        Some(theirs) => format!("{:>11.2} µs {:>6.2}x", theirs * 1e6, theirs / ours),
        None => format!("{:>22}", "-"),
    }
}

fn copy_seconds(bytes: u64, statistic: Statistic) -> f64 {
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
    statistic.of(&std::iter::repeat_with(once).take(ROUNDS).collect::<Vec<_>>()).unwrap_or(0.0)
}
