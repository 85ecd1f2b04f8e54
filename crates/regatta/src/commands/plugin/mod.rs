//! `regatta plugin`: plug-ins of NCCL and RCCL.

mod check;
mod install;
mod load;
mod render;

use std::process::ExitCode;

use anyhow::Result;

pub use check::library_facts;
pub use load::load_library;

use crate::args::plugin::{PluginArgs, PluginCommand};

/// Runs the command.
pub fn run(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::Check(args) => check::run(args),
        PluginCommand::Install(args) => install::run(args),
        PluginCommand::LoadLibrary(args) => load::run(args),
    }
}
