//! Collects the facts of all nodes: launches one rank on each, and again where a
//! measurement gave a bad result. Each launch is a child process.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use regatta_doctor::{Check, JobFacts};
use regatta_launch::config::JobConfig;
use regatta_launch::signal_catcher::SignalCatcher;
use regatta_model::document;
use regatta_model::result::RankExit;
use serde::{Deserialize, Serialize};

use super::confirm;
use crate::cli::AGENT_LAUNCHERS;
use crate::commands::child_process;
use crate::commands::launch::Interrupted;
use crate::output;
use crate::shell::quote_words;

/// Repetitions of a measurement with a bad result.
const MAX_REPETITIONS: u32 = 2;

/// What to test on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tests {
    /// Working directory of the job.
    pub work_dir: PathBuf,
    /// Further directories to test.
    pub paths: Vec<PathBuf>,
    /// Whether to test connections between nodes.
    pub network: bool,
    /// Whether to measure cores, memory and GPUs.
    pub speed: bool,
}

impl Tests {
    /// All tests but those that only the skipped checks need.
    pub fn new(skip: &BTreeSet<Check>, paths: &[PathBuf]) -> Result<Self> {
        let work_dir = std::env::current_dir().context("current directory")?;
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).with_context(|| format!("--path {}", path.display()))
        };
        let network = [Check::Reachability, Check::Bandwidth, Check::Clocks];
        Ok(Self {
            work_dir,
            paths: paths.iter().map(absolute).collect::<Result<_>>()?,
            network: !network.iter().all(|check| skip.contains(check)),
            speed: !skip.contains(&Check::Speed),
        })
    }
}

/// Collects the facts of the nodes that the options of `regatta launch` name, spares included.
/// Measurements with a bad result are repeated: a disturbance seldom occurs three times.
pub fn examine(options: &JobConfig, tests: &Tests) -> Result<JobFacts> {
    let mut signals = SignalCatcher::new()?;
    let mut facts = collect(options, options.run_dir.as_deref(), tests, &mut signals)?;
    for repetition in 1..=MAX_REPETITIONS {
        let Some(tests) = confirm::tests_to_repeat(&facts, tests) else { break };
        output::note("a measurement gave a bad result: repeating it");
        let folder = options.run_dir.as_deref();
        let folder = folder.map(|folder| folder.join(format!("repetition-{repetition}")));
        let again = collect(options, folder.as_deref(), &tests, &mut signals)?;
        facts = confirm::better_of(facts, &again);
    }
    Ok(facts)
}

/// Runs the tests on all nodes in a child process.
fn collect(
    options: &JobConfig,
    run_dir: Option<&Path>,
    tests: &Tests,
    signals: &mut SignalCatcher,
) -> Result<JobFacts> {
    let program = std::env::current_exe().context("cannot locate the regatta executable")?;
    let mut command = Command::new(program);
    command.arg("doctor").args(child_options(options, run_dir, tests));
    let (status, facts) = child_process::output_of(&mut command, signals)?;
    if let Some(signal) = signals.termination() {
        return Err(Interrupted(RankExit::Signal(signal)).into());
    }
    if !status.success() {
        bail!("the nodes were not tested ({status}); see the messages above");
    }
    Ok(document::from_json(&String::from_utf8_lossy(&facts))?)
}

/// The options of `regatta doctor` that only collect facts. Launch options that say how to reach the
/// nodes are passed on.
fn child_options(options: &JobConfig, run_dir: Option<&Path>, tests: &Tests) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
    let selected = [("network", tests.network), ("speed", tests.speed)];
    let selected = selected.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name);
    add("--collect", selected.collect::<Vec<_>>().join(",").into());
    if let Some(nodes) = options.source.nodes {
        add("--nodes", nodes.saturating_add(options.spares).to_string().into());
    }
    let hostfile = options.source.hostfile.as_deref();
    for (option, path) in [("--hostfile", hostfile), ("--run-dir", run_dir)] {
        if let Some(path) = path {
            add(option, path.into());
        }
    }
    tests.paths.iter().for_each(|path| add("--path", path.into()));
    add("--start-timeout", options.agents.start_timeout.as_secs().to_string().into());
    let launch = quote_words(&launch_options(options));
    add("--launch", launch.into());
    words
}

fn launch_options(options: &JobConfig) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let launcher = options.agents.launcher.and_then(|launcher| {
        AGENT_LAUNCHERS.iter().find(|(_, value, _)| *value == launcher).map(|(name, ..)| *name)
    });
    let mut add = |option: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [option.into(), value]));
    };
    add("--launcher", launcher.map(OsString::from));
    add("--ssh", options.agents.ssh.as_ref().map(OsString::from));
    add("--agent", options.agents.program.as_ref().map(OsString::from));
    add("--site", options.source.site.as_ref().map(OsString::from));
    for file in &options.source.site_files {
        add("--site-file", Some(file.into()));
    }
    for option in &options.agents.options {
        add("--launcher-option", Some(option.into()));
    }
    add("--heartbeat-timeout", Some(options.heartbeat_timeout.as_secs().to_string().into()));
    if options.source.standalone {
        words.push("--standalone".into());
    }
    words
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
    fn the_child_reaches_the_same_nodes() {
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
        let options = launch_job(&words);
        let tests = Tests {
            work_dir: "/".into(),
            paths: vec!["/scratch/a b".into()],
            network: true,
            speed: false,
        };
        let child = child_options(&options, None, &tests);
        let words = ["regatta", "doctor"].map(OsString::from).into_iter().chain(child);
        let CliCommand::Doctor(doctor) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not a doctor")
        };
        let launch = doctor.launch_args().unwrap().job;
        assert_eq!((launch.source.nodes, launch.spares), (Some(6), 0));
        assert_eq!(launch.agents.ssh.as_deref(), Some("ssh -p 22"));
        assert_eq!(launch.agents.launcher, options.agents.launcher);
        assert_eq!(launch.agents.options, ["-v"]);
        let again = doctor.tests(&BTreeSet::new()).unwrap();
        assert_eq!((again.network, again.speed, again.paths), (true, false, tests.paths));
    }
}
