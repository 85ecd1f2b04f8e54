//! `regatta train`: trains a model, and shows how that goes.

mod alone;
pub mod args;
mod asked;
mod curve;
mod explain;
mod face;
mod figures;
mod listing;
mod place;
mod rank;
mod report;
mod screen;
mod smoke;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use regatta_train::config::Resolved;

pub use args::TrainArgs;

use super::ranks::is_rank;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<ExitCode> {
    if args.keys {
        return listing::keys();
    }
    if args.presets {
        return listing::presets();
    }
    let resolved = asked::resolved(args)?;
    if args.print_config {
        return listing::configuration(&resolved);
    }
    if args.explain {
        return explain::run(&resolved, args);
    }
    train(&resolved, args)
}

/// Trains, or looks whether that works: as a rank of a job, or as one that starts the ranks.
fn train(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    match (is_rank("train")?, args.smoke) {
        (true, false) => rank::run(resolved, args),
        (false, false) => alone::run(resolved, args),
        (true, true) => smoke::rank::run(resolved, args),
        (false, true) => smoke::alone::run(resolved, args),
    }
}
