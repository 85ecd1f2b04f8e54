//! The options of `regatta plugin`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::options::at_least;

/// `regatta plugin`.
#[derive(Debug, Args)]
pub struct PluginArgs {
    /// Action
    #[command(subcommand)]
    pub command: PluginCommand,
}

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Check a library before the job: kinds and versions, whether it loads, which releases use it
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Write the plug-ins of this program to a folder, and print the variables that load them
    #[command(after_long_help = INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Load a library in this process, on behalf of `regatta plugin check`
    #[command(hide = true)]
    LoadLibrary(LoadLibraryArgs),
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta plugin check ./libnccl-net-ofi.so     kinds, versions, dependencies, releases that use it
  regatta plugin check                          what the variables of this environment select
  regatta plugin install ~/lib                  write profiler, tuner and net, print their variables";

/// `regatta plugin check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Library: a path, a file name that the dynamic loader finds, or a suffix such as ofi for
    /// libnccl-net-ofi.so [default: those that NCCL_NET_PLUGIN, NCCL_TUNER_PLUGIN and
    /// NCCL_PROFILER_PLUGIN, or their default names, select here]
    #[arg(value_name = "PATH")]
    pub path: Option<String>,
    /// Check for one release only: a version of NCCL (2.28), of RCCL by its ROCm (rocm-6.4), or the
    /// path of libnccl.so.2 or librccl.so.1
    #[arg(long, value_name = "RELEASE")]
    pub nccl: Option<String>,
    /// Seconds that the library's initialisers may take
    #[arg(long, value_name = "SECONDS", default_value_t = LOAD_LIMIT.as_secs(), allow_negative_numbers = true, value_parser = at_least::<u64>(1).range(..=3600))]
    pub timeout: u64,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Examples in the help.
const CHECK_EXAMPLES: &str = "\
Examples:
  regatta plugin check ./libnccl-net-ofi.so     kinds, versions, dependencies, releases that use it
  regatta plugin check ofi                      the library that NCCL_NET_PLUGIN=ofi selects
  regatta plugin check                          what the variables of this environment select
  regatta plugin check --nccl 2.28 ./libnccl-net.so
                                                status 1 unless NCCL 2.28 would use it
  regatta plugin check --nccl rocm-6.4 librccl-net.so
                                                for the RCCL of ROCm 6.4
  regatta plugin check --nccl /opt/nccl/lib/libnccl.so.2 --json ./libnccl-tuner.so
                                                for the version of this file, as JSON

The library is loaded in a process of its own; none of its functions is called. The exit status is
0 if it loads and a known release would use it.";

/// `regatta plugin install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Folder for the plug-ins, on a file system that all nodes of a job see
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Examples in the help.
const INSTALL_EXAMPLES: &str = "\
Examples:
  regatta plugin install ~/lib                  write the plug-ins, and print their variables
  regatta launch --profile python train.py      without an installation, under `regatta launch`;
                                                also --tuner TABLE and --net-plugin regatta";

/// Time limit of the initialisers by default.
pub const LOAD_LIMIT: Duration = Duration::from_secs(10);

/// `regatta plugin load-library`.
#[derive(Debug, Args)]
pub struct LoadLibraryArgs {
    /// Library to load
    pub path: PathBuf,
    /// Symbols of tables whose names are read
    pub symbols: Vec<String>,
}
