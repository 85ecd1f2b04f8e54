//! A rank of the smoke test. Rank 0 reports the events.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use regatta_comm::{Comm, bootstrap, hierarchical};
use regatta_launch::channel::RankEnd;
use regatta_train::training::smoke::{Check, Details, Findings, RankInfo, SmokeEvent, SmokeTest};
use regatta_train::training::{TrainError, TrainingSetup};

use super::report::ReportingProcess;
use super::reporter::SmokeReporter;
use crate::commands::compute_device;
use crate::commands::rank_events::EventSink;
use crate::commands::rank_worker::report_lost_peer;
use crate::commands::train::{TrainTask, rank as training};

/// Runs the smoke test on this rank.
pub fn run(task: &TrainTask, channel: Option<RankEnd>) -> Result<ExitCode> {
    let settings = bootstrap::BootstrapConfig::from_env()?;
    let rank = settings.rank;
    let reporter = || Ok(SmokeReporter::new(ReportingProcess::Rank, task.json));
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
    let mut on_check = |result| sink.emit(SmokeEvent::Check(Box::new(result)));
    let mut smoke = SmokeTest::new(comm.clone(), &stop, &mut on_check);
    let result = run_checks(&mut smoke, &comm, task, elapsed);
    let (current, passed) = (smoke.current(), smoke.passed());
    if let Err(error) = result {
        // Tells the other ranks the cause, because they wait for this one.
        comm.abort(&error.to_string());
        if let Some(mut to_launcher) = to_launcher {
            report_lost_peer(&mut to_launcher, &error);
        }
        return fail(sink, current, error);
    }
    sink.emit(SmokeEvent::Done);
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
    let mut config = task.config()?;
    compute_device::resolve(&mut config, &**comm)?;
    let threads = training::threads(&config);
    let kernels = compute_device::describe(&config, threads);
    let rank = comm.rank();
    let host = comm.peer(rank).host;
    let cpus = regatta_discover::live_affinity().unwrap_or_default();
    smoke.ranks(&RankInfo { rank, host, cpus, threads, kernels: kernels.clone() })?;
    let folder = training::run_folder(task, &**comm)?;
    let (dataset, device) = smoke.check(Check::Data, |comm| {
        let dataset = training::open_dataset(&config, comm)?;
        let (device, _) = training::open_device(&mut config, &dataset, threads, &folder, comm)?;
        let (source, tokens) = (config.data.source.clone(), dataset.train.len());
        Ok::<_, anyhow::Error>(((dataset, device), Findings::of(Details::Data { source, tokens })))
    })?;
    let device_comm = device.device_comm(&**comm)?;
    let (name, comm, device) = (task.name.clone(), comm.clone(), device.into_device());
    let run = training::run_id();
    let setup = TrainingSetup {
        config,
        name,
        comm,
        device_comm,
        device,
        threads,
        kernels,
        gemm_flops_per_second: 0.0,
        dataset,
        folder,
        run,
        require_checkpoint: false,
    };
    smoke.training(setup)?;
    Ok(())
}

/// Reports an incomplete check. Rank 0 reports for all ranks; another rank prints only an error that
/// the others do not have.
fn fail(mut sink: EventSink<SmokeReporter>, check: Check, error: Error) -> Result<ExitCode> {
    use TrainError::{Comm, Interrupted, NotFinite, RankMismatch, WrongAllReduce};
    let is_on_all_ranks = matches!(
        error.downcast_ref(),
        Some(
            Comm(_) | RankMismatch { .. } | NotFinite { .. } | WrongAllReduce { .. } | Interrupted
        )
    );
    if matches!(sink, EventSink::Discard) && !is_on_all_ranks {
        return Err(error);
    }
    sink.emit(match error.downcast_ref() {
        Some(Interrupted) => SmokeEvent::Interrupted(check),
        _ => SmokeEvent::Aborted { check, reason: format!("{error:#}") },
    });
    finish(sink)?;
    Ok(ExitCode::FAILURE)
}

/// Fails if the events could not be sent, or the report not be printed.
fn finish(sink: EventSink<SmokeReporter>) -> Result<()> {
    sink.finish()?.map_or(Ok(()), |mut reporter| reporter.finish())
}
