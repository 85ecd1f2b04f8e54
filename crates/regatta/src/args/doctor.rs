//! The options of `regatta doctor`.

use std::path::PathBuf;

use clap::Args;
use regatta_doctor::Check;

use crate::options::{at_least, positive};

/// `regatta doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the first COUNT nodes of the allocation or of --hostfile
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = positive(), help_heading = "Nodes")]
    pub nodes: Option<u32>,
    /// Take the nodes from FILE instead of the scheduler, and reach them over ssh
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    pub hostfile: Option<PathBuf>,
    /// Seconds to wait for the nodes to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = at_least::<u64>(1), help_heading = "Nodes")]
    pub start_timeout: u64,
    /// Options of `regatta launch`, as in '--launcher ssh'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, help_heading = "Nodes")]
    pub launch: Option<String>,
    /// Run folder with the logs of the nodes [default: a folder below runs/ that is removed if all
    /// nodes report]
    #[arg(long, value_name = "FOLDER", help_heading = "Nodes")]
    pub run_dir: Option<PathBuf>,

    /// Skip these checks (comma-separated), by their names in the report
    #[arg(long, value_name = "CHECKS", value_delimiter = ',', value_parser = check, help_heading = "Checks")]
    pub skip: Vec<Check>,
    /// Also test the file system of this directory (repeatable), such as that of the dataset
    #[arg(long, value_name = "DIRECTORY", help_heading = "Checks")]
    pub path: Vec<PathBuf>,
    /// Judge the facts in FILE, which --dump wrote, instead of collecting them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hostfile", "launch", "run_dir", "path"], help_heading = "Checks")]
    pub facts: Option<PathBuf>,

    /// Write the collected facts to FILE (`-`: standard output), to be read by --facts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub dump: Option<PathBuf>,
    /// Print the diagnosis as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Also list the checks that do not apply, with the reason, and facts that could not be collected
    #[arg(long, short, help_heading = "Output")]
    pub verbose: bool,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta doctor                                this machine
  salloc -N 16 regatta doctor                   all nodes of the allocation, at once
  regatta doctor --hostfile hosts               these hosts, over ssh
  regatta doctor --path /scratch/me --skip speed
                                                test another file system, do not measure
  regatta doctor --json > doctor.json           for scripts; the exit status is 1 if a check failed
  regatta doctor --dump facts.json              record what was found...
  regatta doctor --facts facts.json             ...and judge it elsewhere
  salloc -N 18 regatta launch --preflight --spares 2 python train.py
                                                check first, and replace bad nodes by spares";

/// Parses the name of a check.
fn check(name: &str) -> Result<Check, String> {
    let names = || Check::all().map(Check::name).collect::<Vec<_>>().join(", ");
    Check::all()
        .find(|check| check.name() == name)
        .ok_or_else(|| format!("expected one of {}", names()))
}
