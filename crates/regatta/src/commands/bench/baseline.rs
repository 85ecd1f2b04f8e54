//! Checks a run against a baseline result (`--baseline`).

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use regatta_measure::baseline::{self, Tolerance};
use regatta_model::{BenchResult, units};

use super::files;
use crate::args::bench::TableArgs;
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
    pub fn new(args: &TableArgs) -> Result<Option<Self>> {
        let Some(file) = &args.baseline else { return Ok(None) };
        let results = files::load(file).context("--baseline")?;
        let [baseline] = <[BenchResult; 1]>::try_from(results).map_err(|results| {
            anyhow!(
                "{} contains {} results, but a baseline must have exactly one; extract it with \
                 `regatta bench read --only N --json`",
                file.display(),
                results.len()
            )
        })?;
        Ok(Some(Self { baseline, file: file.clone(), tolerance: args.tolerance }))
    }

    /// Prints whether a result passes, and returns it.
    pub fn check(&self, result: &BenchResult) -> bool {
        let report = baseline::check(result, &self.baseline, self.tolerance);
        let (count, file) = (units::pluralize(report.checks.len(), "value"), self.file.display());
        if report.passed() {
            let within = format!("{count} within {}", self.tolerance);
            output::eprint(&format!("{GOOD}no regression against {file}{GOOD:#}: {within}\n"));
            return true;
        }
        let failures = report.failures();
        let mut text = match failures.len() {
            0 => format!("{ERROR}the baseline {file} has no values to compare{ERROR:#}\n"),
            worse => format!(
                "{ERROR}baseline {file}{ERROR:#}: {worse} of {count} regressed or missing\n"
            ),
        };
        failures.iter().for_each(|failure| text.push_str(&format!("  {failure}\n")));
        output::eprint(&text);
        false
    }
}
