//! `regatta comms`: what a job communicated, from its event files.

mod csv;
mod render;
mod status;
mod trace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_events::{file, status as live};
use regatta_model::document;
use regatta_observe::comms::Attempts;
use regatta_observe::read::comms as read;
use regatta_observe::view;

use crate::args::comms::CommsArgs;
use crate::output;
use crate::plot_file::{self, PlotFormat};

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
        _ => output::print(&render::render(&report, args.ranks))?,
    }
    if args.csv {
        report.warnings.iter().for_each(output::warn);
    }
    Ok(if report.summary.calls > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
