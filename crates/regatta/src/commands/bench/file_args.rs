//! The command line of `regatta bench` for results in files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use regatta_model::CpuSet;

/// `regatta bench compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The results; the first is what the others are compared with
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// What to call them, in their order, with commas
    #[arg(long, value_name = "TEXTS", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Compare this figure; without it busbw, or the time where there is none
    #[arg(long, value_enum, value_name = "FIGURE")]
    pub figure: Option<FigureName>,
    /// Compare what was measured in place
    #[arg(long)]
    pub in_place: bool,
    #[command(flatten)]
    pub form: FormArgs,
}

/// `regatta bench read`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The results (`-`: standard input)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub form: FormArgs,
}

/// Which results, and how they are printed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct FormArgs {
    /// Of all results of all files only these, as in 1,3-4: the first is number 1
    #[arg(long, value_name = "NUMBERS")]
    pub only: Option<CpuSet>,
    /// Print as JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print as CSV
    #[arg(long)]
    pub csv: bool,
    /// Draw bandwidth and latency over size into FILE: .svg, or .html with the tables
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// What is compared.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum FigureName {
    /// Bandwidth of the links
    Busbw,
    /// Size over time
    Algbw,
    /// Time
    Time,
}
