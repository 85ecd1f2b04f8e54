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
use regatta_doctor::{Check, Diagnosis, JobFacts, Verdict, judge};
use regatta_launch::discovery::Discovery;
use regatta_model::document;

use crate::args::doctor::DoctorArgs;
use crate::commands::launcher::LaunchOptions;
use crate::commands::self_launch::LaunchRequest;
use crate::options::RankCountArgs;
use crate::output;
pub use render::{render, style};

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
    let to_json = || Ok(document::to_json(&diagnosis)?);
    output::print_report(args.json, to_json, || render(&diagnosis, args.verbose))?;
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
        let (nodes, hostfile) = (self.nodes, self.hostfile.clone());
        let counts = RankCountArgs { ranks: None, ranks_per_node: Some(1), nodes, hostfile };
        let (gpus, user_options) = (true, self.launch.as_deref());
        let request = LaunchRequest { counts, gpus, user_options, ..LaunchRequest::default() };
        let mut launch = request.options()?;
        launch.job.run_dir = self.run_dir.clone();
        launch.job.agents.start_timeout = Duration::from_secs(self.start_timeout);
        Ok(launch)
    }
}
