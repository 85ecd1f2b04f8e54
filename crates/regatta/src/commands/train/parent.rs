//! Started by a person: starts the ranks, each this program again, and shows what rank 0 tells.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use regatta_launch::folder::run_id;
use regatta_train::config::Resolved;
use regatta_train::run::CONFIG as CONFIG_FILE;

use super::args::TrainArgs;
use super::place;
use super::rank::EVENT;
use super::report::Report;
use crate::cli::LaunchArgs;
use crate::commands::launch;
use crate::commands::self_launch::LaunchRequest;
use crate::output;

/// Starts the ranks.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let (launch, folder) = launch_args(resolved, args, args.ranks.ranks)?;
    let named = args.resume.as_ref().or(args.run_dir.as_ref());
    let mut report = Report::new(args, named.unwrap_or(&folder));
    let hear = Box::new(move |line: &str| match line.strip_prefix(EVENT) {
        Some(event) => report.hear_text(event),
        None => report.make_way(),
    });
    let listener = launch::LineObserver {
        is_event: |line| line.starts_with(EVENT),
        on_line: hear,
        prints_run_dir: true,
    };
    launch::run_with_observer(&launch, Some(listener))
}

/// How so many ranks are started, or as many as the launcher plans, and where what they write is kept.
pub fn launch_args(
    resolved: &Resolved,
    args: &TrainArgs,
    count: Option<u32>,
) -> Result<(Box<LaunchArgs>, PathBuf)> {
    let id = run_id(SystemTime::now(), std::process::id());
    // What goes on has its ranks' logs beside those of the ranks before.
    let folder = match (&args.resume, &args.run_dir) {
        (Some(before), _) => place::again(before, &id),
        (None, Some(own)) => place::launch_folder(own, &placed(resolved)?.config, &id)?,
        (None, None) => PathBuf::from("runs").join(&id),
    };
    let ranks = &args.ranks;
    let wanted = LaunchRequest {
        ranks: count,
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        run_dir: folder.clone(),
        gpus: false,
        user_options: ranks.launch.as_deref(),
        options: Vec::new(),
    };
    let launch = wanted.launch_args()?;
    // Whatever the data's vocabulary will be.
    resolved.config.shape(1)?;
    if let Some(count) = count {
        resolved.config.validate(count as usize)?;
    }
    Ok((launch, folder))
}

/// Leaves the configuration in the run's folder, so that the run can go on and what it has kept is
/// found, from wherever that is asked for.
pub fn keep_config(resolved: &Resolved, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    output::write_file(&folder.join(CONFIG_FILE), &placed(resolved)?.to_toml())
}

/// The same with the folder of checkpoints as it is called from anywhere.
fn placed(resolved: &Resolved) -> Result<Resolved> {
    let mut placed = resolved.clone();
    let checkpoints = &mut placed.config.checkpoint.folder;
    if !checkpoints.is_empty() {
        let absolute = std::path::absolute(&checkpoints);
        let absolute = absolute.with_context(|| format!("checkpoint.folder {checkpoints}"))?;
        *checkpoints = absolute.to_string_lossy().into_owned();
    }
    Ok(placed)
}
