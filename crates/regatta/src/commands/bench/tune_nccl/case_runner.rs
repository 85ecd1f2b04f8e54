//! Runs the jobs of a measurement: NCCL reads its environment once per process, so each has ranks of its
//! own.

use std::path::Path;

use anyhow::{Context, Result};
use regatta_launch::process::EnvSetting;
use regatta_launch::signal_catcher;
use regatta_measure::request::{BenchRequest, Workload};
use regatta_measure::write::TableLayout;
use regatta_model::Operation;
use regatta_model::run_folder::CASE_OUTPUT;
use regatta_nccl_tuning::candidate::Candidate;

use super::rounds::{TuneOutcome, TuneRun, TuneRunner};
use crate::cli::HEADING;
use crate::commands::bench::case::BenchCase;
use crate::commands::bench::parent::BenchLaunch;
use crate::commands::bench::reporter::OutputFormat;
use crate::output::{self, OutputCapture, Stream};

/// Lines of it that are shown if it must not fail.
const ERROR_LINES: usize = 12;

/// Runs the jobs.
pub struct CaseRunner<'a> {
    pub request: &'a BenchRequest,
    pub launch: BenchLaunch,
    pub folder: &'a Path,
    /// The collectives of NCCL's default.
    pub operations: Vec<Operation>,
}

impl TuneRunner for CaseRunner<'_> {
    fn run(&mut self, run: TuneRun<'_>) -> Result<TuneOutcome> {
        let case = self.case(run);
        let heading = format!("{} of {}: {}", run.number + 1, run.total, case.label);
        output::eprint(&format!("{HEADING}{heading}{HEADING:#}\n"));
        std::fs::create_dir_all(&case.folder)
            .with_context(|| format!("cannot create {}", case.folder.display()))?;
        let log = case.folder.join(CASE_OUTPUT);
        let captured = OutputCapture::to(&log)?;
        let status = case.run(&self.request_of(run), OutputFormat::Silent, TableLayout::Means);
        drop(captured);
        if signal_catcher::terminated_by().is_some() {
            return Ok(TuneOutcome::Interrupted);
        }
        if let Some(result) = case.result().filter(|result| status == 0 && result.complete) {
            return Ok(TuneOutcome::Measured(Box::new(result)));
        }
        // Candidates may fail: NCCL does not have every algorithm on every machine.
        if run.candidate.is_none() {
            print_end(&log);
        }
        let log = log.display();
        Ok(TuneOutcome::Failed(format!("the run failed (exit status: {status}), see {log}")))
    }

    fn dropped(&mut self, candidate: &Candidate, why: &str) {
        output::note(&format!("{} is left out: {why}", candidate.choice));
    }
}

impl CaseRunner<'_> {
    fn case(&self, run: TuneRun<'_>) -> BenchCase {
        let name = match run.candidate {
            None => "NCCL's default".to_owned(),
            Some(candidate) => candidate.choice.to_string(),
        };
        // Another tuner would replace the choice.
        let no_tuner: [EnvSetting; 2] = [
            ("NCCL_TUNER_PLUGIN".to_owned(), Some("none".to_owned())),
            ("REGATTA_TUNER".to_owned(), None),
        ];
        let chosen = run.candidate.map(Candidate::environment).unwrap_or_default();
        let chosen = chosen.into_iter().map(|(name, value)| (name, Some(value)));
        BenchCase {
            folder: self.folder.join(run.number.to_string()),
            label: format!("{name}, round {}", run.round + 1),
            environment: no_tuner.into_iter().chain(chosen).collect(),
            launch: self.launch.clone(),
        }
    }

    /// The benchmark of the collectives that the candidate changes.
    fn request_of(&self, run: TuneRun<'_>) -> BenchRequest {
        let operations = |candidate: &Candidate| {
            candidate.functions.iter().map(|function| function.name().to_owned().into()).collect()
        };
        let mut request = self.request.clone();
        if let Workload::Collectives { config, .. } = &mut request.workload {
            config.operations = run.candidate.map_or_else(|| self.operations.clone(), operations);
        }
        request
    }
}

/// Prints the end of what a case printed.
fn print_end(log: &Path) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = &lines[lines.len().saturating_sub(ERROR_LINES)..];
    output::eprint(&format!("{}\n", Stream::Stderr.sanitized(&end.join("\n"))));
}
