//! The parent process: launches the ranks, each this program again, and reports the events of rank
//! 0.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use regatta_launch::run_folder::run_id;
use regatta_train::config::Resolved;
use regatta_train::run::CONFIG as CONFIG_FILE;

use super::args::TrainArgs;
use super::rank::EVENT_PREFIX;
use super::reporter::ProgressReporter;
use super::run_dir;
use crate::cli::LaunchArgs;
use crate::commands::launch;
use crate::commands::self_launch::LaunchRequest;
use crate::output;

/// Launches the ranks.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let (launch, launch_folder) = launch_args(resolved, args, args.ranks.ranks)?;
    let run_dir = args.resume.as_ref().or(args.run_dir.as_ref());
    let mut reporter = ProgressReporter::new(args, run_dir.unwrap_or(&launch_folder));
    let on_line = Box::new(move |line: &str| match line.strip_prefix(EVENT_PREFIX) {
        Some(event) => reporter.on_event_json(event),
        None => reporter.hide_dashboard(),
    });
    let observer = launch::LineObserver {
        is_event: |line| line.starts_with(EVENT_PREFIX),
        on_line,
        prints_run_dir: true,
    };
    launch::run_with_observer(&launch, Some(observer))
}

/// Options of `regatta launch` for `count` ranks (`None`: as planned by the launcher), and the
/// launch folder.
pub fn launch_args(
    resolved: &Resolved,
    args: &TrainArgs,
    count: Option<u32>,
) -> Result<(Box<LaunchArgs>, PathBuf)> {
    let id = run_id(SystemTime::now(), std::process::id());
    let folder = match (&args.resume, &args.run_dir) {
        (Some(run_dir), _) => run_dir::relaunch_folder(run_dir, &id),
        (None, Some(run_dir)) => {
            run_dir::launch_folder(run_dir, &with_absolute_paths(resolved)?.config, &id)?
        }
        (None, None) => PathBuf::from("runs").join(&id),
    };
    let ranks = &args.ranks;
    let request = LaunchRequest {
        ranks: count,
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        run_dir: folder.clone(),
        gpus: false,
        user_options: ranks.launch.as_deref(),
    };
    let launch = request.launch_args()?;
    // Validates the model with any vocabulary size, because the data is not read yet.
    resolved.config.shape(1)?;
    if let Some(count) = count {
        resolved.config.validate(count as usize)?;
    }
    Ok((launch, folder))
}

/// Saves the configuration in the run folder, for `--resume` and for commands that look up the
/// run's checkpoints.
pub fn save_config(resolved: &Resolved, run_dir: &Path) -> Result<()> {
    std::fs::create_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    output::write_file(&run_dir.join(CONFIG_FILE), &with_absolute_paths(resolved)?.to_toml())
}

/// The configuration with an absolute checkpoint folder, valid in any working directory.
fn with_absolute_paths(resolved: &Resolved) -> Result<Resolved> {
    let mut resolved = resolved.clone();
    let checkpoints = &mut resolved.config.checkpoint.dir;
    if !checkpoints.is_empty() {
        let absolute = std::path::absolute(&checkpoints);
        let absolute = absolute.with_context(|| format!("checkpoint.dir {checkpoints}"))?;
        *checkpoints = absolute.to_string_lossy().into_owned();
    }
    Ok(resolved)
}
