//! Which figure of a measurement counts.

use std::fmt;

use regatta_model::{BenchResult, BenchTable, Measurement, Operation};
use serde::{Deserialize, Serialize};

use crate::formula;

/// A figure of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// What the links carry, in GB/s: more is better.
    BusBandwidth,
    /// Size over time, in GB/s: more is better.
    AlgorithmBandwidth,
    /// The time of a call, in microseconds: less is better.
    Time,
}

impl Figure {
    /// What it is called, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::BusBandwidth => "bus bandwidth in GB/s",
            Self::AlgorithmBandwidth => "algorithm bandwidth in GB/s",
            Self::Time => "time in µs",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::BusBandwidth | Self::AlgorithmBandwidth => "GB/s",
            Self::Time => "µs",
        }
    }

    /// Whether more of it is better.
    pub fn is_bandwidth(self) -> bool {
        self != Self::Time
    }

    /// What users look at for an operation: of a message's latency or a barrier its time.
    pub fn usual(operation: &Operation) -> Self {
        match operation {
            Operation::Latency | Operation::Barrier => Self::Time,
            Operation::Bandwidth | Operation::BiBandwidth => Self::AlgorithmBandwidth,
            _ => Self::BusBandwidth,
        }
    }

    /// Its value. A bandwidth that a program does not tell is worked out from the time, if the
    /// number of ranks is known; a size that is a part of the whole tells none.
    pub fn of(
        self,
        result: &BenchResult,
        table: &BenchTable,
        size_bytes: u64,
        measured: &Measurement,
    ) -> Option<f64> {
        let derived = || {
            let osu = result.program == regatta_model::bench::Program::Osu;
            if osu && formula::is_parted(&table.operation) {
                return None;
            }
            let ranks = result.shape.ranks?;
            formula::bandwidth(&table.operation, ranks, size_bytes, measured.time_us?)
        };
        match self {
            Self::Time => measured.time_us,
            Self::AlgorithmBandwidth => measured.algbw.or_else(|| derived().map(|b| b.algbw)),
            Self::BusBandwidth => measured.busbw.or_else(|| derived().map(|b| b.busbw)),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
