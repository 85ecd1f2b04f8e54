//! Events of a run, consumed by a terminal, a file or the parent process.

use regatta_comm::schedule::algorithm_table::AlgorithmTable;
use regatta_model::bench::{PairMatrices, RankRoofline};
use regatta_model::{BenchResult, BenchRow, BenchTable};
use serde::{Deserialize, Serialize};

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchEvent {
    /// The run starts: its metadata, without measurements.
    Started(Box<BenchResult>),
    /// The following rows belong to this table, which is still empty.
    TableStarted(BenchTable),
    /// A row was measured.
    Row(Box<BenchRow>),
    /// The pairwise matrix was measured.
    Pairs(Box<PairMatrices>),
    /// The rooflines of all ranks were measured.
    Rooflines(Vec<RankRoofline>),
    /// A tuning table for algorithm selection.
    TuningTable(Box<AlgorithmTable>),
    /// Progress.
    Progress(BenchProgress),
    /// A warning for the user.
    Note(String),
    /// The run is complete.
    Finished,
}

/// Progress of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchProgress {
    /// The current task.
    pub task: String,
    /// Finished rows.
    pub done: usize,
    /// Rows in total.
    pub total: usize,
    /// Estimated remaining seconds.
    pub eta_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip_through_json() {
        let event = BenchEvent::Progress(BenchProgress {
            task: "all-reduce".to_owned(),
            done: 1,
            total: 3,
            eta_s: 0.5,
        });
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<BenchEvent>(&text).unwrap(), event);
    }
}
