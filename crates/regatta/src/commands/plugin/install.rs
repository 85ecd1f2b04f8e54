//! `regatta plugin install`: the profiler plug-in for jobs of any launcher.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use regatta_events::record::settings::FOLDER_VARIABLE;

use crate::commands::launch::profile::PLUGIN_VARIABLE;
use crate::shell::quote;
use crate::{output, plugins};

/// `regatta plugin install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Folder for the plug-in, on a file system that all nodes of a job see
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta plugin install ~/lib                  write the profiler plug-in, and print its variables
  regatta launch --profile python train.py      without an installation, under `regatta launch`";

/// Writes the plug-in and prints the variables that load it.
pub fn run(args: &InstallArgs) -> Result<ExitCode> {
    let folder = std::path::absolute(&args.folder).context("path of the folder")?;
    let path = plugins::install_profiler(&folder)?;
    let path = quote(&path.to_string_lossy());
    output::print(&format!(
        "export {PLUGIN_VARIABLE}={path}\nexport {FOLDER_VARIABLE}=\"$PWD/comms\"\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}
