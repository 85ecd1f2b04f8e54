//! `regatta train`: trains a model and shows the progress.

mod explain;
mod gpu_trace;
mod listing;
pub mod options;
mod parent;
mod preflight;
mod rank;
mod reporter;
pub mod run_folder;
mod smoke;
mod terminal;

use std::process::ExitCode;

use anyhow::Result;
use regatta_launch::channel::RankEnd;

use super::self_launch::is_rank;
use super::train_task::TrainTask;
use crate::args::train::TrainArgs;
use crate::output;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<ExitCode> {
    let success = |()| ExitCode::SUCCESS;
    if args.keys {
        return listing::print_keys().map(success);
    }
    if args.presets {
        return listing::print_presets().map(success);
    }
    let resolved = options::resolve(args)?;
    if args.print_config {
        return output::print(&resolved.to_toml()).map(success);
    }
    // With --measure, the parent has printed the explanation before it launched the ranks.
    if args.explain && !(args.measure && is_rank("train")?) {
        explain::run(&resolved, args)?;
        if !args.measure {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if !args.smoke && !args.explain {
        resolved.check_data_given()?;
    }
    let task = TrainTask::new(&resolved, args)?;
    match is_rank("train")? {
        true => run_rank(&task, None),
        false => parent::run(task, args),
    }
}

/// Runs a rank, with a channel if the parent process launched it.
pub fn run_rank(task: &TrainTask, channel: Option<RankEnd>) -> Result<ExitCode> {
    match task.smoke {
        true => smoke::rank::run(task, channel),
        false => rank::run(task, channel),
    }
}
