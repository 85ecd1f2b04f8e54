//! The options of `regatta comms`.

use std::path::PathBuf;

use clap::Args;
use regatta_observe::comms::Attempts;

use crate::options::number;

/// `regatta comms`.
#[derive(Debug, Args)]
pub struct CommsArgs {
    /// Run folder, folder with event files, or event files
    #[arg(value_name = "RUN", required = true)]
    pub paths: Vec<PathBuf>,
    /// Attempt of a job that was restarted: 0 is the first one, or `all` [default: the last one]
    #[arg(long, value_name = "NUMBER", value_parser = attempts)]
    pub attempt: Option<Attempts>,
    /// Show this many ranks, those that others waited for longest first, or `all`
    #[arg(long, value_name = "COUNT", value_parser = rank_count, default_value = "8")]
    pub ranks: usize,
    /// Show the last collective of each rank while the job runs, from the status files
    #[arg(long, conflicts_with_all = ["csv", "plot", "trace"])]
    pub status: bool,
    /// Print the whole report as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Print the message-size histogram as CSV
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub csv: bool,
    /// Plot the message-size histogram to FILE (.html or .svg)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
    /// Write the events of all ranks to FILE as a trace for Perfetto or chrome://tracing (.json; `-`:
    /// standard output, in place of the report)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// First second of the trace, counted from the first event
    #[arg(long, value_name = "SECONDS", requires = "trace", value_parser = seconds(), help_heading = "Output")]
    pub from: Option<f64>,
    /// Last second of the trace, counted from the first event
    #[arg(long, value_name = "SECONDS", requires = "trace", value_parser = seconds(), help_heading = "Output")]
    pub to: Option<f64>,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta comms runs/20261117-223922-1          message sizes, bandwidths, communicators, slow ranks
  regatta comms runs/20261117-223922-1 --trace trace.json
                                                all ranks on one time line, for ui.perfetto.dev
  regatta comms RUN --trace step.json --from 60 --to 62
                                                two seconds of it
  regatta comms RUN --csv > sizes.csv           the message-size histogram for a spreadsheet
  regatta comms RUN --plot sizes.html           as a plot
  regatta comms RUN --status                    the last collective of each rank of a running job
  regatta comms rank-00003-*.events --json      one rank

`regatta launch --profile` records event files. With another launcher, set NCCL_PROFILER_PLUGIN to
the path of the plug-in that `regatta plugin install` writes, and REGATTA_PROFILE to a shared folder.";

fn attempts(text: &str) -> Result<Attempts, String> {
    match text {
        "all" => Ok(Attempts::All),
        "last" => Ok(Attempts::Last),
        number => {
            let parsed = number.parse().map(Attempts::One);
            parsed.map_err(|_| "expected a number, `last` or `all`".to_owned())
        }
    }
}

fn rank_count(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        number => number.parse().map_err(|_| "expected a number, or `all`".to_owned()),
    }
}

fn seconds() -> impl clap::builder::TypedValueParser<Value = f64> {
    number(|seconds| (0.0..1e9).contains(seconds), "expected seconds, not below 0")
}
