//! Runs the jobs of a measurement: NCCL reads its environment once per process, so each is a child run.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use regatta_launch::signal_catcher::SignalCatcher;
use regatta_model::Operation;
use regatta_nccl_tuning::candidate::Candidate;

use super::rounds::{TuneOutcome, TuneRun, TuneRunner};
use crate::cli::HEADING;
use crate::commands::bench::args::CollectiveArgs;
use crate::commands::bench::child_run::ChildRun;
use crate::commands::bench::{files, multi_run};
use crate::commands::child_process;
use crate::output::{self, Stream};

/// What a child prints, in its folder.
const LOG: &str = "output.txt";
/// Lines of it that are shown if it must not fail.
const ERROR_LINES: usize = 12;

/// Runs jobs as child processes.
pub struct ChildRunner<'a> {
    pub args: &'a CollectiveArgs,
    pub folder: &'a Path,
    /// The collectives of NCCL's default.
    pub operations: Vec<Operation>,
    pub signals: SignalCatcher,
}

impl TuneRunner for ChildRunner<'_> {
    fn run(&mut self, run: TuneRun<'_>) -> Result<TuneOutcome> {
        let child = self.child(run);
        let heading = format!("{} of {}: {}", run.number + 1, run.total, child.label);
        output::eprint(&format!("{HEADING}{heading}{HEADING:#}\n"));
        std::fs::create_dir_all(&child.folder)
            .with_context(|| format!("cannot create {}", child.folder.display()))?;
        let log = child.folder.join(LOG);
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = multi_run::command(self.args, &child)?;
        command.stdout(Stdio::null()).stderr(file).env_remove("REGATTA_TUNER");
        let status = child_process::wait_for(&mut command, &mut self.signals)?;
        if self.signals.termination().is_some() {
            return Ok(TuneOutcome::Interrupted);
        }
        let result = files::load(&child.out()).ok().and_then(|mut all| all.pop());
        if let Some(result) = result.filter(|result| status.success() && result.complete) {
            return Ok(TuneOutcome::Measured(Box::new(result)));
        }
        // Candidates may fail: NCCL does not have every algorithm on every machine.
        if run.candidate.is_none() {
            print_end(&log);
        }
        Ok(TuneOutcome::Failed(format!("the run failed ({status}), see {}", log.display())))
    }

    fn dropped(&mut self, candidate: &Candidate, why: &str) {
        output::note(&format!("{} is left out: {why}", candidate.choice));
    }
}

impl ChildRunner<'_> {
    fn child(&self, run: TuneRun<'_>) -> ChildRun {
        let name = match run.candidate {
            None => "NCCL's default".to_owned(),
            Some(candidate) => candidate.choice.to_string(),
        };
        // Another tuner would replace the choice.
        let mut environment = vec![("NCCL_TUNER_PLUGIN".to_owned(), "none".to_owned())];
        environment.extend(run.candidate.map(Candidate::environment).unwrap_or_default());
        let operation = |candidate: &Candidate| {
            candidate.functions.iter().map(|function| function.name().to_owned().into()).collect()
        };
        ChildRun {
            folder: self.folder.join(run.number.to_string()),
            label: format!("{name}, round {}", run.round + 1),
            environment,
            nodes: None,
            operations: run.candidate.map_or_else(|| self.operations.clone(), operation),
        }
    }
}

/// Prints the end of what a child printed.
fn print_end(log: &Path) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = &lines[lines.len().saturating_sub(ERROR_LINES)..];
    output::eprint(&format!("{}\n", Stream::Stderr.sanitized(&end.join("\n"))));
}
