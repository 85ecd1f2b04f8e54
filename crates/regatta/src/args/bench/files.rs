//! The options of `regatta bench compare` and `read`.

use std::path::PathBuf;

use clap::Args;
use regatta_measure::metric::Metric;
use regatta_model::CpuSet;

use crate::options::{NamedValue, one_of};

/// `regatta bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Result files; the others are compared with the first
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Labels of the results, separated by commas [default: those of --label, else the file names]
    #[arg(long, value_name = "TEXTS", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Metric to compare [default: busbw, or time if there is none]
    #[arg(long, value_parser = one_of(&METRICS), value_name = "METRIC")]
    pub metric: Option<Metric>,
    /// Compare in-place measurements
    #[arg(long)]
    pub in_place: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `regatta bench read`.
#[derive(Debug, Clone, Args)]
pub struct ReadArgs {
    /// Result files (`-`: standard input)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Selection and output format.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct FormatArgs {
    /// Select results by number, e.g. 1,3-4; the first is 1
    #[arg(long, value_name = "NUMBERS")]
    pub only: Option<CpuSet>,
    /// Print as JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print as CSV
    #[arg(long)]
    pub csv: bool,
    /// Plot bandwidth and latency over size to FILE: .svg, or .html with tables
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

const METRICS: [NamedValue<Metric>; 3] = [
    ("busbw", Metric::BusBandwidth, "Bus bandwidth"),
    ("algbw", Metric::AlgorithmBandwidth, "Algorithm bandwidth: size / time"),
    ("time", Metric::Time, "Time"),
];
