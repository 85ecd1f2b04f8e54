//! Metrics of a measurement.

use regatta_comm::enum_names;
use regatta_model::{BenchResult, BenchTable, Measurement, Operation};
use serde::{Deserialize, Serialize};

use crate::bus_bandwidth;

/// A metric of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Bus bandwidth in GB/s; higher is better.
    BusBandwidth,
    /// Size / time in GB/s; higher is better.
    AlgorithmBandwidth,
    /// Time of a call in µs; lower is better.
    Time,
}

enum_names!(Metric, "All metrics, named with their unit.",
    BusBandwidth "bus bandwidth in GB/s", AlgorithmBandwidth "algorithm bandwidth in GB/s",
    Time "time in µs");

impl Metric {
    /// The unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::BusBandwidth | Self::AlgorithmBandwidth => "GB/s",
            Self::Time => "µs",
        }
    }

    /// Whether higher is better.
    pub fn is_bandwidth(self) -> bool {
        self != Self::Time
    }

    /// The usual metric of an operation: time for point-to-point latency and barriers.
    pub fn default_for(operation: &Operation) -> Self {
        match operation {
            Operation::Latency | Operation::Barrier => Self::Time,
            Operation::Bandwidth | Operation::BiBandwidth => Self::AlgorithmBandwidth,
            _ => Self::BusBandwidth,
        }
    }

    /// The value. A missing bandwidth is derived from the time if the number of ranks is known,
    /// except for OSU's chunked operations, whose size is one chunk.
    pub fn value(
        self,
        result: &BenchResult,
        table: &BenchTable,
        size_bytes: u64,
        measured: &Measurement,
    ) -> Option<f64> {
        let derived = || {
            let osu = result.program == regatta_model::bench::BenchProgram::Osu;
            if osu && bus_bandwidth::is_chunked(&table.operation) {
                return None;
            }
            let ranks = result.shape.ranks?;
            bus_bandwidth::bandwidth(&table.operation, ranks, size_bytes, measured.time_us?)
        };
        match self {
            Self::Time => measured.time_us,
            Self::AlgorithmBandwidth => measured.algbw.or_else(|| derived().map(|b| b.algbw)),
            Self::BusBandwidth => measured.busbw.or_else(|| derived().map(|b| b.busbw)),
        }
    }
}
