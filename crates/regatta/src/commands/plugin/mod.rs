//! `regatta plugin`: plug-ins of NCCL and RCCL.

mod check;
mod install;
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
    /// Write the plug-ins of this program to a folder, and print the variables that load them
    #[command(after_long_help = install::EXAMPLES)]
    Install(install::InstallArgs),
    /// Load a library in this process, on behalf of `regatta plugin check`
    #[command(hide = true)]
    LoadLibrary(load::LoadLibraryArgs),
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta plugin check ./libnccl-net-ofi.so     kinds, versions, dependencies, releases that use it
  regatta plugin check                          what the variables of this environment select
  regatta plugin install ~/lib                  write profiler, tuner and net, print their variables";

/// Runs the command.
pub fn run(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::Check(args) => check::run(args),
        PluginCommand::Install(args) => install::run(args),
        PluginCommand::LoadLibrary(args) => load::run(args),
    }
}
