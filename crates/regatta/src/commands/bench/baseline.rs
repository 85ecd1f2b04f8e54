//! Checks a run against a baseline result (`--baseline`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_measure::baseline::{self, Tolerance};
use regatta_model::{BenchResult, units};

use super::args::OutputArgs;
use super::files;
use crate::cli::{ERROR, GOOD};
use crate::output;

/// The baseline and its tolerance.
pub struct BaselineGate {
    baseline: BenchResult,
    file: PathBuf,
    tolerance: Tolerance,
}

impl BaselineGate {
    /// Reads the baseline, if there is one, before anything is measured.
    pub fn new(args: &OutputArgs) -> Result<Option<Self>> {
        let Some(file) = &args.baseline else { return Ok(None) };
        let tolerance = args.tolerance.parse::<Tolerance>()?;
        let baseline = single_result(files::load(file)?, file)?;
        Ok(Some(Self { baseline, file: file.clone(), tolerance }))
    }

    /// Prints whether a result passes, and returns the exit code.
    pub fn check(&self, result: &BenchResult) -> Result<ExitCode> {
        let report = baseline::check(result, &self.baseline, self.tolerance);
        let (count, file) = (units::pluralize(report.checks.len(), "value"), self.file.display());
        if report.passed() {
            output::eprint(&format!(
                "{GOOD}no regression against {file}{GOOD:#}: {count} within {}\n",
                self.tolerance
            ));
            return Ok(ExitCode::SUCCESS);
        }
        let failures = report.failures();
        let mut text = match failures.len() {
            0 => format!("{ERROR}the baseline {file} has no values to compare{ERROR:#}\n"),
            worse => format!("{ERROR}regression against {file}{ERROR:#}: {worse} of {count}\n"),
        };
        failures.iter().for_each(|failure| text.push_str(&format!("  {failure}\n")));
        output::eprint(&text);
        Ok(ExitCode::FAILURE)
    }
}

/// The only result of a file.
fn single_result(results: Vec<BenchResult>, file: &Path) -> Result<BenchResult> {
    let count = results.len();
    match results.into_iter().next() {
        Some(one) if count == 1 => Ok(one),
        _ => bail!(
            "{} contains {count} results, but a baseline must have exactly one; extract it by \
             `regatta bench read --only N --json`",
            file.display()
        ),
    }
}
