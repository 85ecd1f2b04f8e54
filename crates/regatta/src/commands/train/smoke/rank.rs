//! A rank of the smoke test. Rank 0 reports the events.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use regatta_comm::{Comm, CommError, bootstrap, hierarchical};
use regatta_launch::channel::RankEnd;
use regatta_model::units::format_count;
use regatta_train::training::TrainError;
use serde_json::json;

use super::checks::{Interrupted, RankInfo, SmokeTest};
use super::report::{Check, CheckResult, SmokeEvent, SmokeFailure};
use super::reporter::SmokeReporter;
use crate::commands::compute_device;
use crate::commands::rank_events::EventSink;
use crate::commands::rank_request::report_lost_peer;
use crate::commands::train::{TrainTask, rank as training};

/// Runs the smoke test on this rank.
pub fn run(task: &TrainTask, channel: Option<RankEnd>) -> Result<ExitCode> {
    let settings = bootstrap::BootstrapConfig::from_env()?;
    let rank = settings.rank;
    let reporter = || Ok(SmokeReporter::of_rank(task.json));
    let has_parent = channel.is_some();
    let to_launcher = channel.as_ref().map(RankEnd::try_clone).transpose()?;
    let mut sink = EventSink::new(rank, channel, reporter)?;
    let start = Instant::now();
    let comm: Arc<dyn Comm> = match hierarchical::join(settings) {
        Ok(comm) => Arc::new(comm),
        Err(error) => return fail(sink, Check::Join, TrainError::from(error).into()),
    };
    let elapsed = start.elapsed();
    // Installed only now: before the ranks are connected, a signal ends the process at once.
    let stop = training::stop_flag()?;
    let stop = || stop.load(Ordering::Relaxed);
    let mut emit = |event| sink.emit(event);
    let mut smoke = SmokeTest::new(comm.clone(), &stop, &mut emit);
    let result = run_checks(&mut smoke, &comm, task, elapsed);
    let (current, passed) = (smoke.current, smoke.passed);
    if let Err(error) = result {
        // Tells the other ranks the cause, because they wait for this one.
        comm.abort(&error.to_string());
        if let Some(mut to_launcher) = to_launcher {
            report_lost_peer(&mut to_launcher, &error);
        }
        return fail(sink, current, error);
    }
    sink.emit(SmokeEvent::End(None));
    finish(sink)?;
    // A parent process exits by the report. No rank has failed for the launcher: all agree on the
    // result.
    Ok(if passed || has_parent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all checks after the bootstrap, which took `bootstrap_time`.
fn run_checks(
    smoke: &mut SmokeTest<'_>,
    comm: &Arc<dyn Comm>,
    task: &TrainTask,
    bootstrap_time: Duration,
) -> Result<()> {
    smoke.joined(bootstrap_time)?;
    let mut config = task.resolved.config.clone();
    compute_device::resolve(&mut config, &**comm)?;
    let threads = training::threads(&config);
    let kernels = compute_device::describe(&config, threads);
    let rank = comm.rank();
    let host = comm.peer(rank).host;
    let cpus = regatta_discover::live_affinity().unwrap_or_default();
    smoke.ranks(&RankInfo { rank, host, cpus, threads, kernels })?;
    let folder = training::run_folder(task, &**comm)?;
    let (dataset, device) = smoke.check(Check::Data, |comm| {
        let dataset = training::open_dataset(&config, comm)?;
        let (device, _) = training::open_device(&mut config, &dataset, threads, &folder, comm)?;
        let (source, tokens) = (&config.data.source, dataset.train.len());
        let summary = format!("{source}, {} tokens", format_count(tokens as f64));
        let details = json!({"data": {"source": source, "tokens": tokens}});
        Ok(((dataset, device), CheckResult::passed(details, summary)))
    })?;
    smoke.training(training::setup(task, config, comm.clone(), dataset, device, folder)?)
}

/// Reports an incomplete check. Rank 0 reports for all ranks; another rank prints only an error that
/// the others do not have.
fn fail(mut sink: EventSink<SmokeReporter>, check: Check, error: Error) -> Result<ExitCode> {
    use TrainError::{Comm, NotFinite, RankMismatch};
    let is_interrupted = error.is::<Interrupted>();
    let of_training = error.downcast_ref();
    let is_on_all_ranks = is_interrupted
        || matches!(of_training, Some(Comm(_) | RankMismatch { .. } | NotFinite { .. }))
        || error.is::<CommError>();
    if matches!(sink, EventSink::Discard) && !is_on_all_ranks {
        return Err(error);
    }
    let failure = SmokeFailure::new(check, format!("{error:#}"));
    let hint = failure.hint.filter(|_| !is_interrupted);
    sink.emit(SmokeEvent::End(Some(SmokeFailure { hint, ..failure })));
    finish(sink)?;
    Ok(ExitCode::FAILURE)
}

/// Fails if the events could not be sent, or the report not be printed.
fn finish(sink: EventSink<SmokeReporter>) -> Result<()> {
    sink.finish()?.map_or(Ok(()), |mut reporter| reporter.finish())
}
