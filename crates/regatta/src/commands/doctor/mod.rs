//! `regatta doctor`: whether the nodes of the allocation, or this machine, are fit to run a job.

mod collect;
pub mod nodes;
mod observer;
pub mod rank;
mod render;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use regatta_doctor::{Check, Diagnosis, JobFacts, Verdict, judge};
use regatta_launch::discovery::Discovery;
use regatta_model::document;

use crate::commands::launch::LaunchOptions;
use crate::commands::self_launch::LaunchRequest;
use crate::options::{at_least, positive};
use crate::output;
pub use render::{render, style};

/// `regatta doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the first COUNT nodes of the allocation or of --hostfile
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = positive(), help_heading = "Nodes")]
    nodes: Option<u32>,
    /// Take the nodes from FILE instead of the scheduler, and reach them over ssh
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    hostfile: Option<PathBuf>,
    /// Seconds to wait for the nodes to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = at_least::<u64>(1), help_heading = "Nodes")]
    start_timeout: u64,
    /// Options of `regatta launch`, as in '--launcher ssh'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, help_heading = "Nodes")]
    launch: Option<String>,
    /// Run folder with the logs of the nodes [default: a folder below runs/ that is removed if all
    /// nodes report]
    #[arg(long, value_name = "FOLDER", help_heading = "Nodes")]
    run_dir: Option<PathBuf>,

    /// Skip these checks (comma-separated), by their names in the report
    #[arg(long, value_name = "CHECKS", value_delimiter = ',', value_parser = check, help_heading = "Checks")]
    skip: Vec<Check>,
    /// Also test the file system of this directory (repeatable), such as that of the dataset
    #[arg(long, value_name = "DIRECTORY", help_heading = "Checks")]
    path: Vec<PathBuf>,
    /// Judge the facts in FILE, which --dump wrote, instead of collecting them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hostfile", "launch", "run_dir", "path"], help_heading = "Checks")]
    facts: Option<PathBuf>,

    /// Write the collected facts to FILE (`-`: standard output), to be read by --facts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    dump: Option<PathBuf>,
    /// Print the diagnosis as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Also list the checks that do not apply, with the reason, and facts that could not be collected
    #[arg(long, short, help_heading = "Output")]
    verbose: bool,
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
    let found = Check::ALL.into_iter().find(|check| check.name() == name);
    found.ok_or_else(|| format!("expected one of {}", Check::ALL.map(Check::name).join(", ")))
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let skip: BTreeSet<Check> = args.skip.iter().copied().collect();
    if let Some(path) = &args.dump {
        output::check_writable("--dump", path)?;
    }
    let facts = match &args.facts {
        Some(file) => load(file)?,
        None => {
            let options = nodes::launch_options(&args.launch_args()?.job)?;
            let discovery = Discovery::of_job(&options.job)?;
            nodes::examine(&options, &discovery, &nodes::tests(&skip, &args.path)?)?
        }
    };
    if let Some(path) = &args.dump {
        output::write_file(path, &document::to_json(&facts)?)?;
    }
    let diagnosis = judge(&facts, &skip);
    match args.json {
        true => output::print(&document::to_json(&diagnosis)?)?,
        false => output::print(&render(&diagnosis, args.verbose))?,
    }
    Ok(exit_code(&diagnosis))
}

fn exit_code(diagnosis: &Diagnosis) -> ExitCode {
    ExitCode::from(u8::from(diagnosis.verdict == Verdict::Fail))
}

fn load(file: &PathBuf) -> Result<JobFacts> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    document::from_json(&text).with_context(|| shown.to_string())
}

impl DoctorArgs {
    /// The options of `regatta launch` for one rank per node.
    fn launch_args(&self) -> Result<LaunchOptions> {
        let request = LaunchRequest {
            ranks_per_node: Some(1),
            nodes: self.nodes,
            hostfile: self.hostfile.as_deref(),
            gpus: true,
            user_options: self.launch.as_deref(),
            ..Default::default()
        };
        let mut launch = request.options()?;
        launch.job.run_dir = self.run_dir.clone();
        launch.job.agents.start_timeout = Duration::from_secs(self.start_timeout);
        Ok(launch)
    }
}
