//! `regatta train`: trains a model, and shows how that goes.

pub mod args;
mod asked;
mod curve;
mod face;
mod figures;
mod listing;
#[allow(dead_code, reason = "nothing is trained yet that it could show")]
mod screen;
mod watch;

use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_train::config::Resolved;

pub use args::TrainArgs;

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
    train(&resolved, args)
}

/// Trains: as a rank of a job, or as one that starts the ranks.
fn train(resolved: &Resolved, _args: &TrainArgs) -> Result<ExitCode> {
    bail!(
        "{} cannot be trained yet: so far `regatta train` has --keys, --presets and --print-config",
        resolved.name
    )
}
