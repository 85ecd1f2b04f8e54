//! Whether a run is as good as an earlier one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_measure::baseline::{Tolerance, judge};
use regatta_model::{BenchResult, units};

use super::args::OutputArgs;
use super::files;
use crate::cli::{ERROR, GOOD};
use crate::output;

/// What a run is judged by.
pub struct Verdict {
    baseline: BenchResult,
    file: PathBuf,
    tolerance: Tolerance,
}

impl Verdict {
    /// Reads the baseline, if there is one: before anything is measured.
    pub fn new(args: &OutputArgs) -> Result<Option<Self>> {
        let Some(file) = &args.baseline else { return Ok(None) };
        let tolerance = args.tolerance.parse::<Tolerance>()?;
        let baseline = one_of(files::load(file)?, file)?;
        Ok(Some(Self { baseline, file: file.clone(), tolerance }))
    }

    /// Says whether a result is good enough.
    pub fn judge(&self, result: &BenchResult) -> Result<ExitCode> {
        let judged = judge(result, &self.baseline, self.tolerance);
        let (count, file) = (units::count(judged.verdicts.len(), "figure"), self.file.display());
        if judged.passed() {
            output::complain(&format!(
                "{GOOD}as good as {file}{GOOD:#}: {count} within {}\n",
                self.tolerance
            ));
            return Ok(ExitCode::SUCCESS);
        }
        let failures = judged.failures();
        let mut text = match failures.len() {
            0 => format!("{ERROR}nothing of {file} was measured{ERROR:#}\n"),
            worse => format!("{ERROR}worse than {file}{ERROR:#}: {worse} of {count}\n"),
        };
        failures.iter().for_each(|failure| text.push_str(&format!("  {failure}\n")));
        output::complain(&text);
        Ok(ExitCode::FAILURE)
    }
}

/// The one result of a file.
fn one_of(results: Vec<BenchResult>, file: &Path) -> Result<BenchResult> {
    let count = results.len();
    match results.into_iter().next() {
        Some(one) if count == 1 => Ok(one),
        _ => bail!(
            "{} has {count} results; a baseline is one: `regatta bench read --json` shows them",
            file.display()
        ),
    }
}
