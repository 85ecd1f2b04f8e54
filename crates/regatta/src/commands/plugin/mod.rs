//! `regatta plugin`: plug-ins of NCCL and RCCL.

mod install;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// `regatta plugin`.
#[derive(Debug, Args)]
pub struct PluginArgs {
    /// Action
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Write the profiler plug-in to a folder, and print the variables that load it
    #[command(after_long_help = install::EXAMPLES)]
    Install(install::InstallArgs),
}

/// Examples in the help.
pub const EXAMPLES: &str = install::EXAMPLES;

/// Runs the command.
pub fn run(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::Install(args) => install::run(args),
    }
}
