//! What a run tells while it goes on: data, which a screen, a file or another process takes.

use regatta_model::bench::{Ceiling, Pairs};
use regatta_model::{BenchResult, BenchRow, BenchTable};
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It begins: all that is known before anything was measured.
    Begin(Box<BenchResult>),
    /// The next rows are of this operation; it has none yet.
    Table(BenchTable),
    /// A size was measured.
    Row(Box<BenchRow>),
    /// Every pair of ranks was measured.
    Pairs(Box<Pairs>),
    /// What each rank's devices, memory and file system can do was measured.
    Ceilings(Vec<Ceiling>),
    /// A table was made by which ranks choose algorithms: a document.
    Tuned(String),
    /// How far it is.
    Progress(Progress),
    /// Something the user should know.
    Note(String),
    /// All was measured.
    End,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is measured now.
    pub doing: String,
    /// Rows that are done.
    pub done: usize,
    /// Rows in all.
    pub of: usize,
    /// Seconds that it will take on.
    pub left_s: f64,
}

/// Estimates how long the rest takes, from the sizes that are done and their seconds: a size takes
/// at least as long as the one before, and large ones in proportion.
pub fn left_s(done: &[(u64, f64)], rest: &[u64]) -> f64 {
    let estimate = |size: u64| {
        let nearest = done.iter().min_by_key(|(known, _)| known.abs_diff(size));
        nearest.map_or(0.0, |(known, seconds)| {
            seconds * (size.max(PROPORTIONAL) as f64 / (*known).max(PROPORTIONAL) as f64)
        })
    };
    rest.iter().map(|size| estimate(*size)).sum()
}

/// Below this it is not the bytes that take the time.
const PROPORTIONAL: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_sizes_take_their_time() {
        assert_eq!(left_s(&[], &[8, 16]), 0.0);
        assert_eq!(left_s(&[(8, 0.5)], &[16, 32]), 1.0);
        let megabytes = |n: u64| n << 20;
        assert_eq!(left_s(&[(8, 0.1), (megabytes(4), 1.0)], &[megabytes(8), megabytes(16)]), 6.0);
    }

    #[test]
    fn events_are_carried_as_text() {
        let event = Event::Progress(Progress {
            doing: "all-reduce".to_owned(),
            done: 1,
            of: 3,
            left_s: 0.5,
        });
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
