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

#[cfg(test)]
mod tests {
    use super::*;

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
