//! `regatta plugin`: the NCCL plug-ins of this program.

mod install;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

/// `regatta plugin`.
#[derive(Debug, Args)]
pub struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Write the profiler plug-in to a folder, and print the variables that load it
    Install {
        /// Folder for the plug-in, on a file system that all nodes of a job see
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta plugin install ~/lib                  write the profiler plug-in, and print its variables
  regatta launch --profile python train.py      without an installation, under `regatta launch`";

/// Runs the command.
pub fn run(args: &PluginArgs) -> Result<()> {
    match &args.command {
        PluginCommand::Install { folder } => install::run(folder),
    }
}
