//! A rank of the benchmark. Rank 0 reports the events.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use regatta_comm::bootstrap::BootstrapConfig;
use regatta_launch::config::JobSource;
use regatta_launch::discovery::Discovery;
use regatta_measure::collectives::BenchEvent;
use regatta_measure::rank::{self, NodeContext};
use regatta_measure::request::BenchRequest;
use regatta_model::Machine;
use regatta_model::run_folder::{self, bench_result_name};

use super::options::BenchOptions;
use super::reporter::Reporter;
use crate::commands::rank_events::EventSink;
use crate::commands::rank_request::{RankContext, note_unrecorded};
use crate::commands::reporter_output::ReporterOutput;

use crate::system;

/// Upper bound on result files in a run folder.
const MAX_RESULT_FILES: usize = 9999;

/// Runs a rank that another launcher started: rank 0 itself reports to the user.
pub fn run_in_job(options: &BenchOptions<'_>) -> Result<ExitCode> {
    let reporter = || {
        options.check_output_files()?;
        let out = options.output.out.clone().or_else(new_result_file);
        Reporter::new(options, out, ReporterOutput::default())
    };
    run(&options.request, RankContext::without_parent(), reporter)
}

/// Runs the benchmark on this rank. Without a parent process, rank 0 has a reporter.
pub fn run(
    request: &BenchRequest,
    context: RankContext,
    reporter: impl FnOnce() -> Result<Reporter>,
) -> Result<ExitCode> {
    let RankContext { command_line, machine, channel } = context;
    let mut sink = EventSink::new(BootstrapConfig::from_env()?.rank, channel, reporter)?;
    let node = NodeContext {
        command_line: &command_line,
        machine: &|| machine.clone().or_else(discover),
        available_memory: &system::available_memory,
    };
    let measured = rank::run(request, &node, &mut |event| {
        if matches!(event, BenchEvent::Started(_)) {
            note_unrecorded();
        }
        sink.emit(event);
    });
    if let (Err(_), EventSink::Local(reporter)) = (&measured, &mut sink) {
        reporter.flush();
    }
    measured?;
    let is_good = sink.finish()?.map_or(Ok(true), |mut reporter| reporter.finish())?;
    Ok(u8::from(!is_good).into())
}

/// This machine; `None` if it cannot be inspected, which must not fail the benchmark.
fn discover() -> Option<Machine> {
    Discovery::run(&JobSource::default(), 0).ok()?.machines.into_iter().next()
}

/// A new result file in the run folder, if it is visible here. Another `regatta bench` of the job
/// may have left its own.
fn new_result_file() -> Option<PathBuf> {
    let folder = std::env::var_os(run_folder::VARIABLE).map(PathBuf::from)?;
    let names = (1..=MAX_RESULT_FILES).map(bench_result_name);
    names.map(|name| folder.join(name)).find(|file| folder.is_dir() && !file.exists())
}
