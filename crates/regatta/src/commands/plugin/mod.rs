//! `regatta plugin`: plug-ins of NCCL and RCCL.

mod check;
mod load;
mod render;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub use load::{LOAD_LIMIT, load_library};

/// `regatta plugin`.
#[derive(Debug, Args)]
pub struct PluginArgs {
    /// Action
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Check a library before the job: kinds and versions, whether it loads, which releases use it
    #[command(after_long_help = check::EXAMPLES)]
    Check(check::CheckArgs),
    /// Load a library in this process, on behalf of `regatta plugin check`
    #[command(hide = true)]
    LoadLibrary(load::LoadLibraryArgs),
}

/// Examples in the help.
pub const EXAMPLES: &str = check::EXAMPLES;

/// Runs the command.
pub fn run(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::Check(args) => check::run(args),
        PluginCommand::LoadLibrary(args) => load::run(args),
    }
}
