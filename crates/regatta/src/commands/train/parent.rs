//! The parent process: launches the ranks and reports the events of rank 0.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::args::TrainArgs;
use super::preflight;
use super::reporter::ProgressReporter;
use super::run_folder;
use super::smoke::{ReportingProcess, SmokeReporter};
use super::task::TrainTask;
use crate::commands::launch::{self, new_run_id, run_dir_or_new};
use crate::commands::rank_worker::RankTask;
use crate::commands::self_launch::{LaunchRequest, has_rank_count, local_rank_count, set_request};

/// Launches the ranks.
pub fn run(task: TrainTask, args: &TrainArgs) -> Result<ExitCode> {
    let config = task.config()?;
    let (smoke, run_dir) = (task.smoke, task.run_dir());
    let id = new_run_id();
    let folder = match (&args.resume, &args.run_dir) {
        (Some(run_dir), _) => {
            run_folder::check_resumable(run_dir, &config)?;
            run_folder::relaunch_folder(run_dir, &id)
        }
        (None, Some(run_dir)) => run_folder::launch_folder(run_dir, &config, &id)?,
        (None, None) => run_dir_or_new(None, &id),
    };
    let mut launch = launch_request(args, folder.clone()).options()?;
    let discovery = launch::discover(&launch)?;
    if smoke && !has_rank_count(&launch) {
        launch.job.ranks = local_rank_count(&discovery);
    }
    match smoke {
        // The data is a check of its own, on the ranks.
        true => preflight::check_without_data(&config, &launch)?,
        false => preflight::check(&config, &launch, &discovery)?,
    }
    set_request(&mut launch, &discovery, RankTask::Train(task))?;
    if !smoke {
        launch.saves_on_signal = true;
        let mut reporter = ProgressReporter::new(args.json, &run_dir.unwrap_or(folder));
        return launch::launch(&launch, discovery, Some(&mut reporter));
    }
    let mut reporter = SmokeReporter::new(ReportingProcess::Parent, args.json);
    let code = launch::launch(&launch, discovery, Some(&mut reporter))?;
    reporter.on_ranks_exited()?;
    Ok(code)
}

/// The ranks to launch, with logs in `run_dir`.
fn launch_request(args: &TrainArgs, run_dir: PathBuf) -> LaunchRequest<'_> {
    let ranks = &args.ranks;
    LaunchRequest {
        ranks: ranks.ranks,
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        run_dir,
        gpus: false,
        user_options: ranks.launch.as_deref(),
    }
}
