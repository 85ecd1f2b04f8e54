//! Collects the facts of all nodes: launches one rank on each, and again where a measurement gave a bad
//! result.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_doctor::request::NodeTests;
use regatta_doctor::{Check, JobFacts, repetition};
use regatta_launch::config::{JobConfig, JobSource};
use regatta_launch::discovery::Discovery;
use regatta_model::run_folder::repetition_name;

use super::collect::collect;
use crate::commands::launcher::LaunchOptions;
use crate::commands::self_launch::LaunchRequest;
use crate::options::RankCountArgs;
use crate::output;

/// Repetitions of a measurement with a bad result.
const MAX_REPETITIONS: u32 = 2;
/// Restarts after the loss of a node, without it.
const MAX_RESTARTS: u32 = 3;
/// Time for a rank to exit after a signal: it holds nothing worth saving.
const GRACE: Duration = Duration::from_secs(2);

/// All tests but those that only the skipped checks need.
pub fn tests(skip: &BTreeSet<Check>, paths: &[PathBuf]) -> Result<NodeTests> {
    let work_dir = std::env::current_dir().context("current directory")?;
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).with_context(|| format!("--path {}", path.display()))
    };
    let paths = paths.iter().map(absolute).collect::<Result<_>>()?;
    Ok(NodeTests::new(skip, work_dir, paths))
}

/// Collects the facts of the discovered nodes. Measurements with a bad result are repeated: a disturbance
/// seldom occurs three times.
pub fn examine(
    options: &LaunchOptions,
    discovery: &Discovery,
    tests: &NodeTests,
) -> Result<JobFacts> {
    let mut facts = collect(options, discovery, tests)?;
    for repetition in 1..=MAX_REPETITIONS {
        let Some(tests) = repetition::tests_to_repeat(&facts, tests) else { break };
        output::note("a measurement gave a bad result: repeating it");
        let mut options = options.clone();
        let folder = options.job.run_dir.as_mut();
        folder.into_iter().for_each(|folder| folder.push(repetition_name(repetition)));
        facts = repetition::better_of(facts, &collect(&options, discovery, &tests)?);
    }
    Ok(facts)
}

/// The launch of one rank on each node of a job, spares included, which reaches the nodes in the same way.
pub fn launch_options(job: &JobConfig) -> Result<LaunchOptions> {
    let counts = RankCountArgs { ranks_per_node: Some(1), ..RankCountArgs::default() };
    let request = LaunchRequest { counts, gpus: true, ..LaunchRequest::default() };
    let mut options = request.options()?;
    let nodes = job.source.nodes.map(|nodes| nodes.saturating_add(job.spares));
    let source = JobSource { nodes, machines: Vec::new(), system: None, ..job.source.clone() };
    options.job = JobConfig {
        source,
        run_dir: job.run_dir.clone(),
        heartbeat_timeout: job.heartbeat_timeout,
        agents: job.agents.clone(),
        min_nodes: Some(1),
        max_restarts: Some(MAX_RESTARTS),
        grace: Some(GRACE),
        ..options.job
    };
    Ok(options)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as CliCommand};

    fn launch_job(words: &[&str]) -> JobConfig {
        let words = ["regatta", "launch"].iter().chain(words).chain(&["--", "true"]);
        match Cli::try_parse_from(words).unwrap().command {
            CliCommand::Launch(args) => args.into_options().unwrap().job,
            _ => panic!("not a launch"),
        }
    }

    #[test]
    fn the_tests_reach_the_same_nodes() {
        let words = [
            "-N",
            "4",
            "--spares",
            "2",
            "--ssh",
            "ssh -p 22",
            "--launcher",
            "ssh",
            "--launcher-option=-v",
        ];
        let job = launch_job(&words);
        let tests = launch_options(&job).unwrap().job;
        assert_eq!((tests.source.nodes, tests.spares), (Some(6), 0));
        assert_eq!(tests.placement.job.ranks_per_node, Some(1));
        assert_eq!(tests.agents.ssh.as_deref(), Some("ssh -p 22"));
        assert_eq!(tests.agents.launcher, job.agents.launcher);
        assert_eq!(tests.agents.options, ["-v"]);
    }
}
