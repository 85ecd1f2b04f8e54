//! `regatta train`: trains a model and shows the progress.

pub mod args;
mod dashboard;
mod explain;
mod format;
mod history;
mod listing;
mod loss_plot;
mod options;
mod parent;
mod rank;
mod reporter;
mod run_dir;
mod smoke;
mod terminal;
mod usage;

use std::process::ExitCode;

use anyhow::Result;
use regatta_train::config::Resolved;

pub use args::TrainArgs;

use super::self_launch::is_rank;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<ExitCode> {
    if args.keys {
        return listing::print_keys();
    }
    if args.presets {
        return listing::print_presets();
    }
    let resolved = options::resolve(args)?;
    if args.print_config {
        return listing::print_config(&resolved);
    }
    // With --measure, the parent has printed the explanation before it launched the ranks.
    if args.explain && !(args.measure && is_rank("train")?) {
        let code = explain::run(&resolved, args)?;
        if !args.measure {
            return Ok(code);
        }
    }
    train(&resolved, args)
}

/// Runs the training or the smoke test, as a rank of a job or as the parent that launches the ranks.
fn train(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    match (is_rank("train")?, args.smoke) {
        (true, false) => rank::run(resolved, args),
        (false, false) => parent::run(resolved, args),
        (true, true) => smoke::rank::run(resolved, args),
        (false, true) => smoke::parent::run(resolved, args),
    }
}
