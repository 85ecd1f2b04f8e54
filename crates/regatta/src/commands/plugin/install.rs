//! `regatta plugin install`: the plug-ins for jobs of any launcher.

use std::process::ExitCode;

use anyhow::{Context, Result};
use regatta_events::record::settings::FOLDER_VARIABLE;

use crate::args::plugin::InstallArgs;
use crate::commands::launcher::nccl_plugins::{NET_VARIABLE, TABLE_VARIABLE, TUNER_VARIABLE};
use crate::commands::launcher::profile::PLUGIN_VARIABLE;
use crate::shell::quote;
use crate::{output, plugins};

/// Writes the plug-ins and prints the variables that load and enable them.
pub fn run(args: &InstallArgs) -> Result<ExitCode> {
    let folder = std::path::absolute(&args.folder).context("path of the folder")?;
    let library = |plugin: plugins::Plugin| -> Result<String> {
        Ok(quote(&plugin.install(&folder)?.to_string_lossy()))
    };
    let (profiler, tuner) = (library(plugins::PROFILER)?, library(plugins::TUNER)?);
    let net = library(plugins::NET)?;
    output::print(&format!(
        "# profiler: records all collectives, for regatta comms\n\
         export {PLUGIN_VARIABLE}={profiler}\nexport {FOLDER_VARIABLE}=\"$PWD/comms\"\n\
         # tuner: algorithms from a table that regatta bench all --tune tuning.txt --backend nccl has measured\n\
         export {TUNER_VARIABLE}={tuner}\nexport {TABLE_VARIABLE}=\"$PWD/tuning.txt\"\n\
         # net: the network over libfabric\n\
         export {NET_VARIABLE}={net}\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}
