//! The parent process: launches the ranks and reports the events of rank 0.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use regatta_train::config::{Config, DeviceKind, implied_ranks};

use super::preflight;
use super::reporter::ProgressReporter;
use super::run_folder;
use super::smoke::SmokeReporter;
use crate::args::train::{TrainArgs, TrainRankArgs};
use crate::commands::launcher::{self, LaunchOptions, RankReporter, new_run_id, run_dir_or_new};
use crate::commands::rank_events::RankEvents;
use crate::commands::rank_request::RankTask;
use crate::commands::self_launch::{
    LaunchRequest, has_rank_count, local_rank_count, note_oversubscription, set_request,
};
use crate::commands::train_task::TrainTask;
use crate::output;
use regatta_launch::discovery::Discovery;

/// Launches the ranks.
pub fn run(mut task: TrainTask, args: &TrainArgs) -> Result<ExitCode> {
    let config = task.resolved.config.clone();
    let (smoke, run_dir) = (task.smoke, task.run_dir());
    let mut launch = launch_options(args, &config)?;
    let discovery = Discovery::of_job(&launch.job)?;
    // A rank that a scheduler started must not take another rank of its job for another job.
    if let Some(run_dir) = run_dir.as_ref().filter(|_| discovery.allocation.this_rank.is_none()) {
        run_folder::check_not_in_use(run_dir)?;
    }
    let folder = launch_folder(args, &config)?;
    task.set_launch_dir(&folder);
    launch.job.run_dir = Some(folder.clone());
    if !has_rank_count(&launch.job) {
        launch.job.placement.job.ranks = match smoke {
            true => local_rank_count(&discovery),
            false => ranks_of_layout(&config, &discovery),
        };
        if let Some(ranks) = launch.job.placement.job.ranks.filter(|_| !smoke) {
            output::note(&format!(
                "{ranks} ranks, as the parallel layout needs; -n sets another number"
            ));
        }
    }
    match smoke {
        // The data is a check of its own, on the ranks.
        true => preflight::check_without_data(&config, &launch.job)?,
        false => preflight::check(&config, &launch.job, &discovery)?,
    }
    note_oversubscription(&launch.job, &discovery);
    set_request(&mut launch.job, &discovery, RankTask::Train(Box::new(task)))?;
    if !smoke {
        let mut reporter = ProgressReporter::of_launcher(args.json, &run_dir.unwrap_or(folder));
        let events = &mut RankEvents(&mut reporter);
        let events = RankReporter { observer: events, names_run_dir: true };
        let code = launcher::launch(&launch, discovery, Some(events), Vec::new())?;
        reporter.resume_hint().iter().for_each(|hint| output::note(hint));
        return Ok(code.into());
    }
    let mut reporter = SmokeReporter::of_launcher(args.json);
    let events = &mut RankEvents(&mut reporter);
    let events = RankReporter { observer: events, names_run_dir: false };
    let code = launcher::launch(&launch, discovery, Some(events), Vec::new())?;
    reporter.finish()?;
    Ok(code.into())
}

/// The folder of this launch. Fails if the run cannot be resumed, or the folder holds another one.
fn launch_folder(args: &TrainArgs, config: &Config) -> Result<PathBuf> {
    let id = new_run_id();
    match (&args.resume, &args.run_dir) {
        (Some(run_dir), _) => {
            run_folder::check_resumable(run_dir, config)?;
            Ok(run_folder::relaunch_folder(run_dir, &id))
        }
        (None, Some(run_dir)) => run_folder::launch_folder(run_dir, config, &id),
        (None, None) => Ok(run_dir_or_new(None, &id)),
    }
}

/// The number of ranks that training with these options starts, for `--explain`.
pub fn planned_ranks(config: &Config, args: &TrainArgs) -> Result<usize> {
    let launch = launch_options(args, config)?;
    if let Some(ranks) = launch.job.placement.job.ranks {
        return Ok(ranks as usize);
    }
    let discovery = Discovery::of_job(&launch.job)?;
    let of_layout = || ranks_of_layout(config, &discovery);
    if let Some(ranks) = (!has_rank_count(&launch.job)).then(of_layout).flatten() {
        return Ok(ranks as usize);
    }
    Ok(discovery.plan(&launch.job.source, &launch.job.placement)?.placement.ranks as usize)
}

/// Memory of the smallest GPU of the machines to train on, if known.
pub fn gpu_memory(config: &Config, args: &TrainArgs) -> Result<Option<u64>> {
    let launch = launch_options(args, config)?;
    let discovery = Discovery::of_job(&launch.job)?;
    let gpus = discovery.machines.iter().flat_map(|machine| &machine.gpus);
    Ok(gpus.filter_map(|gpu| gpu.memory_bytes).min())
}

/// The number of ranks that the parallel layout needs, on a single machine. Without a layout, and on the
/// nodes of an allocation, the launcher determines it.
fn ranks_of_layout(config: &Config, discovery: &Discovery) -> Option<u32> {
    let by_launcher = discovery.needs_agents() || discovery.allocation.this_rank.is_some();
    let ranks = u32::try_from(implied_ranks(config)).ok();
    ranks.filter(|ranks| *ranks > 1 && !by_launcher)
}

/// The options of `regatta launch` for the ranks.
fn launch_options(args: &TrainArgs, config: &Config) -> Result<LaunchOptions> {
    let TrainRankArgs { counts, plugins, launch } = &args.ranks;
    let request = LaunchRequest {
        counts: counts.clone(),
        plugins: plugins.clone(),
        gpus: config.train.device != Some(DeviceKind::Cpu),
        user_options: launch.as_deref(),
    };
    request.options()
}
