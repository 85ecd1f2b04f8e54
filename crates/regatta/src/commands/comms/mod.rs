//! `regatta comms`: what a job communicated, from its event files.

mod csv;
mod render;
mod status;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use regatta_events::{file, status as live};
use regatta_model::document;
use regatta_observe::comms::Attempts;
use regatta_observe::read::comms as read;
use regatta_observe::view;

use crate::options::number;
use crate::output;
use crate::plot_file::{self, PlotFormat};

/// `regatta comms`.
#[derive(Debug, Args)]
pub struct CommsArgs {
    /// Run folder, folder with event files, or event files
    #[arg(value_name = "RUN", required = true)]
    paths: Vec<PathBuf>,
    /// Attempt of a job that was restarted: 0 is the first one, or `all` [default: the last one]
    #[arg(long, value_name = "NUMBER", value_parser = attempts)]
    attempt: Option<Attempts>,
    /// Show this many ranks, those that others waited for longest first, or `all`
    #[arg(long, value_name = "COUNT", value_parser = rank_count, default_value = "8")]
    ranks: RankCount,
    /// Show the last collective of each rank while the job runs, from the status files
    #[arg(long, conflicts_with_all = ["csv", "plot", "trace"])]
    status: bool,
    /// Print the whole report as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Print the message-size histogram as CSV
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    csv: bool,
    /// Plot the message-size histogram to FILE (.html or .svg)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    plot: Option<PathBuf>,
    /// Write the events of all ranks to FILE as a trace for Perfetto or chrome://tracing (.json; `-`:
    /// standard output, in place of the report)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    /// First second of the trace, counted from the first event
    #[arg(long, value_name = "SECONDS", requires = "trace", value_parser = seconds(), help_heading = "Output")]
    from: Option<f64>,
    /// Last second of the trace, counted from the first event
    #[arg(long, value_name = "SECONDS", requires = "trace", value_parser = seconds(), help_heading = "Output")]
    to: Option<f64>,
}

/// How many ranks to show.
#[derive(Debug, Clone, Copy)]
pub struct RankCount(usize);

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

fn rank_count(text: &str) -> Result<RankCount, String> {
    match text {
        "all" => Ok(RankCount(usize::MAX)),
        number => {
            let parsed = number.parse().map(RankCount);
            parsed.map_err(|_| "expected a number, or `all`".to_owned())
        }
    }
}

fn seconds() -> impl clap::builder::TypedValueParser<Value = f64> {
    number(|seconds| (0.0..1e9).contains(seconds), "expected seconds, not below 0")
}

/// Runs the command.
pub fn run(args: &CommsArgs) -> Result<ExitCode> {
    if args.status {
        let paths = read::find(&args.paths, live::EXTENSION)?;
        let shown = status::run(&paths, args.attempt.unwrap_or_default(), args.json)?;
        return Ok(if shown { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        bail!("--from {from} is not before --to {to}");
    }
    if let Some(path) = &args.plot {
        plot_file::format(path)?;
        output::check_writable("--plot", path)?;
    }
    if let Some(path) = &args.trace {
        output::check_writable("--trace", path)?;
    }
    let paths = read::find(&args.paths, file::EXTENSION)?;
    let analysis = read::read_events(&paths);
    let selected = analysis.select(args.attempt.unwrap_or_default());
    if let (Some(Attempts::One(attempt)), []) = (args.attempt, &selected.files[..]) {
        let known: Vec<String> = selected.attempts.iter().map(u32::to_string).collect();
        bail!("--attempt {attempt}: the event files are of attempt {}", known.join(", "));
    }
    let report = analysis.report(&selected);
    if let Some(path) = &args.plot {
        let text = match plot_file::format(path)? {
            PlotFormat::Html => view::comms::html(&report),
            PlotFormat::Svg => view::comms::svg(&report),
        };
        plot_file::save(path, &text)?;
    }
    if let Some(path) = &args.trace {
        trace::write(path, &selected, &paths, trace::range(args.from, args.to))?;
    }
    match (args.json, args.csv) {
        _ if args.trace.as_deref() == Some(Path::new("-")) => {}
        (true, _) => output::print_raw(&document::to_json(&report)?)?,
        (_, true) => output::print_raw(&csv::csv(&report))?,
        _ => output::print(&render::render(&report, args.ranks.0))?,
    }
    if args.csv {
        report.warnings.iter().for_each(output::warn);
    }
    Ok(if report.summary.calls > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
