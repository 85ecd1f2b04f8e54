//! `regatta train`: trains a model, and shows how that goes.

mod alone;
pub mod args;
mod asked;
mod bytes;
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

use super::self_launch::is_rank;

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
    // A rank does what is asked for; who started it has explained it.
    if args.explain && !(args.measure && is_rank("train")?) {
        let told = explain::run(&resolved, args)?;
        if !args.measure {
            return Ok(told);
        }
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
