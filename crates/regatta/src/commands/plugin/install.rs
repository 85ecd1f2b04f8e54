//! `regatta plugin install`: the profiler plug-in for jobs of any launcher.

use std::path::Path;

use anyhow::{Context, Result};
use regatta_events::record::settings::FOLDER_VARIABLE;

use crate::commands::launch::profile::PLUGIN_VARIABLE;
use crate::plugins;
use crate::shell::quote;

/// Writes the plug-in and prints the variables that load it.
pub fn run(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder).context("path of the folder")?;
    let path = plugins::install_profiler(&folder)?;
    let path = quote(&path.to_string_lossy());
    crate::output::print(&format!(
        "export {PLUGIN_VARIABLE}={path}\nexport {FOLDER_VARIABLE}=\"$PWD/comms\"\n"
    ))
}
