//! Collects and prints results.

use std::collections::BTreeMap;

use crate::Options;

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

    /// First quartile, median and third quartile of all rounds.
    fn quartiles(&self, name: &str, bytes: u64) -> Option<[f64; 3]> {
        let mut times = self.0.get(&(name.to_owned(), bytes)).cloned()?;
        times.sort_by(f64::total_cmp);
        Some([1, 2, 3].map(|quarter| times[(times.len() - 1) * quarter / 4]))
    }
}

/// One Markdown row per operation and size: ours, the peers, and the best peer's time over ours.
pub fn print(names: &[&str], results: &[Results], options: &Options, ranks: u32, suffix: &str) {
    println!("| operation | bytes | {} | ratio |", names.join(" | "));
    println!("|---|---|{}---|", "---|".repeat(names.len()));
    for name in &options.names {
        // A barrier has no data.
        let sizes = if name == "barrier" { &options.bytes[..1] } else { &options.bytes[..] };
        for &bytes in sizes {
            // Without an element per rank, some implementations return at once.
            if is_divided(name) && bytes < u64::from(ranks) * 4 {
                continue;
            }
            let of = |results: &Results| results.quartiles(&format!("{name}{suffix}"), bytes);
            let times: Vec<Option<[f64; 3]>> = results.iter().map(of).collect();
            let Some(Some(ours)) = times.first() else { continue };
            let best = times[1..].iter().flatten().map(|t| t[1]).min_by(f64::total_cmp);
            let ratio = best.map_or("-".to_owned(), |best| format!("{:.2}", best / ours[1]));
            let cells: Vec<String> = times.iter().map(cell).collect();
            println!("| {name} | {bytes} | {} | {ratio} |", cells.join(" | "));
        }
    }
}

/// Whether each rank has a part of the buffer.
fn is_divided(name: &str) -> bool {
    ["all-gather", "reduce-scatter", "gather", "scatter", "all-to-all"].contains(&name)
}

/// Median and quartiles in microseconds.
fn cell(times: &Option<[f64; 3]>) -> String {
    let Some(times) = times else { return "-".to_owned() };
    let [low, median, high] = times.map(|seconds| {
        let us = seconds * 1e6;
        if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") }
    });
    format!("{median} [{low}, {high}]")
}
