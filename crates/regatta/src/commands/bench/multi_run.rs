//! Sweeps and scans: one job per setting or node count, each with its own result file. A failed case does
//! not end the others.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regatta_comm::bootstrap;
use regatta_launch::signal_catcher;
use regatta_measure::request::BenchRequest;
use regatta_measure::sweep::Sweep;
use regatta_measure::{scaling, sweep, write};
use regatta_model::run_folder::scan_case_name;
use regatta_model::units::pluralize;
use regatta_model::{BenchResult, Operation};

use super::case::{BenchCase, lock};
use super::parent::BenchLaunch;
use super::reporter::{OutputFormat, table_layout};
use super::{files, plot, tune_nccl};
use crate::args::bench::{BACKENDS, CollectiveArgs};
use crate::cli::HEADING;
use crate::commands::launcher::{new_run_id, run_dir_or_new};
use crate::output;

/// Runs all cases and prints the summary.
pub fn run(
    operations: &[Operation],
    args: &CollectiveArgs,
    request: &BenchRequest,
) -> Result<ExitCode> {
    let folder = run_dir_or_new(args.ranks.run_dir.as_ref(), &new_run_id());
    match (args.mode.scan, args.tunes_nccl()) {
        (true, _) => scan(args, request, &folder),
        (_, true) => tune_nccl::run(operations, args, request, &folder),
        _ => sweep(args, request, &folder),
    }
}

fn sweep(args: &CollectiveArgs, request: &BenchRequest, folder: &Path) -> Result<ExitCode> {
    let sweep = Sweep::parse(&args.mode.sweep)?;
    sweep.check_own_variables(&bootstrap::VARIABLES).context("--sweep")?;
    let launch = BenchLaunch::new(&args.ranks)?;
    if let Some(variable) = sweep.nccl_variable()
        && let Some(backend) = launch.host_backend(args.ranks.backend)
    {
        bail!("{}", ignored_variable(variable, backend.name()));
    }
    let settings = sweep.settings();
    let set = |(name, value): &(String, String)| (name.clone(), Some(value.clone()));
    let case = |(number, setting): (usize, &sweep::SweepSetting)| BenchCase {
        folder: folder.join(number.to_string()),
        label: setting.to_string(),
        environment: setting.variables.iter().map(set).collect(),
        launch: launch.clone(),
    };
    let cases: Vec<BenchCase> = settings.iter().enumerate().map(case).collect();
    let outcomes = run_cases(args, request, &cases, &|first| check_backend(&sweep, first))?;
    // Settings are matched by index, so a failed case keeps its place.
    let good = outcomes.cases.iter().map(|case| case.good().cloned().unwrap_or_default());
    let best = sweep::best(&good.collect::<Vec<_>>(), &settings);
    let table = sweep::table(&best);
    print_summary(args, &outcomes, &table, serde_json::to_string_pretty(&best)?)
}

fn scan(args: &CollectiveArgs, request: &BenchRequest, folder: &Path) -> Result<ExitCode> {
    let nodes = BenchLaunch::new(&args.ranks)?.discovery.allocation.nodes.len() as u32;
    if nodes < 2 {
        bail!(
            "--scan needs at least two nodes: run it in an allocation of several nodes, or list them \
             in --hostfile"
        );
    }
    let counts = scaling::node_counts(nodes);
    let case = |&count: &u32| -> Result<BenchCase> {
        let mut ranks = args.ranks.clone();
        ranks.counts.nodes = Some(count);
        Ok(BenchCase {
            folder: folder.join(scan_case_name(count)),
            label: pluralize(count as usize, "node"),
            environment: Vec::new(),
            launch: BenchLaunch::new(&ranks)?,
        })
    };
    let cases = counts.iter().map(case).collect::<Result<Vec<_>>>()?;
    let outcomes = run_cases(args, request, &cases, &|_| Ok(()))?;
    let good = |(count, case): (u32, &CaseOutcome)| Some((count, case.good()?.clone()));
    let runs: Vec<_> = counts.into_iter().zip(&outcomes.cases).filter_map(good).collect();
    let scaling = scaling::scaling(&runs);
    let table = scaling::table(&scaling);
    print_summary(args, &outcomes, &table, serde_json::to_string_pretty(&scaling)?)
}

/// Refuses a sweep of NCCL variables that `--backend auto` ran without NCCL: all differences are
/// noise. Whether other nodes have GPUs is known only then.
fn check_backend(sweep: &Sweep, result: &BenchResult) -> Result<()> {
    match (sweep.nccl_variable(), result.backend.as_deref()) {
        (Some(variable), Some(backend)) if !reads_nccl_variables(backend) => {
            bail!("{}", ignored_variable(variable, backend))
        }
        _ => Ok(()),
    }
}

/// Whether a backend, by its name in a result, reads variables of NCCL.
fn reads_nccl_variables(name: &str) -> bool {
    BACKENDS.iter().any(|(own, backend, _)| *own == name && backend.reads_nccl_variables())
}

fn ignored_variable(variable: &str, backend: &str) -> String {
    format!(
        "--sweep {variable}: backend {backend} ignores variables of NCCL, so no setting can be better; \
         sweep REGATTA_* variables, or run on GPUs with --backend nccl"
    )
}

/// Outcomes of all cases.
#[derive(Default)]
struct CaseOutcomes {
    /// One per started case.
    cases: Vec<CaseOutcome>,
    /// The signal that interrupted them.
    signal: Option<i32>,
    /// Error of the last write of the combined file.
    save_error: Option<anyhow::Error>,
}

/// Outcome of a case.
struct CaseOutcome {
    /// The saved result, even if the case failed later.
    result: Option<BenchResult>,
    failed: bool,
}

impl CaseOutcome {
    /// The result, unless the case failed: a failing setting is never the best.
    fn good(&self) -> Option<&BenchResult> {
        self.result.as_ref().filter(|_| !self.failed)
    }
}

impl CaseOutcomes {
    /// All saved results.
    fn results(&self) -> Vec<BenchResult> {
        self.cases.iter().filter_map(|case| case.result.clone()).collect()
    }

    /// Writes all results to one file. A full disk must not end the runs.
    fn save(&mut self, out: &Path) {
        let text = files::as_list(&self.results());
        self.save_error = text.and_then(|text| output::write_file(out, &text)).err();
    }

    fn code(&self) -> ExitCode {
        match self.signal {
            Some(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
            None if self.cases.iter().any(|case| case.failed) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// Runs the cases one after the other until the last, or until a signal. `check` may refuse to go on
/// after the result of one.
fn run_cases(
    args: &CollectiveArgs,
    request: &BenchRequest,
    cases: &[BenchCase],
    check: &dyn Fn(&BenchResult) -> Result<()>,
) -> Result<CaseOutcomes> {
    if let Some(existing) = cases.iter().map(BenchCase::out).find(|out| out.exists()) {
        bail!("{} already exists: choose another folder with --run-dir", existing.display());
    }
    let _lock = cases.first().and_then(|case| lock(case.folder.parent()?));
    let format = match args.output.json || args.output.csv {
        true => OutputFormat::Silent,
        false => OutputFormat::Table,
    };
    let mut outcomes = CaseOutcomes::default();
    for (number, case) in (1..).zip(cases) {
        let heading = format!("{number} of {}: {}", cases.len(), case.label);
        output::eprint(&format!("{HEADING}{heading}{HEADING:#}\n"));
        let status = case.run(request, format, table_layout(Some(&args.table)));
        outcomes.signal = signal_catcher::terminated_by();
        let outcome = outcome(case, status, outcomes.signal.is_some());
        outcome.result.as_ref().map_or(Ok(()), check)?;
        outcomes.cases.push(outcome);
        // Standard output gets the results once, at the end.
        if let Some(out) = args.output.out.as_deref().filter(|out| *out != Path::new("-")) {
            outcomes.save(out);
        }
        if outcomes.signal.is_some() {
            break;
        }
    }
    Ok(outcomes)
}

/// The outcome of a finished case; warns if it failed.
fn outcome(case: &BenchCase, status: u8, interrupted: bool) -> CaseOutcome {
    let mut result = case.result();
    let failed = status != 0 || result.is_none();
    if failed {
        let what = if interrupted { "interrupted" } else { "failed" };
        let left = match &result {
            Some(_) => format!("partial results are in {}", case.folder.display()),
            None => "nothing was measured".to_owned(),
        };
        let note = format!("{} {what} (exit status: {status}); {left}", case.label);
        output::note(&note);
        result.iter_mut().for_each(|result| result.notes.push(note.clone()));
    }
    CaseOutcome { result, failed }
}

/// Prints the summary and the results in the requested format.
fn print_summary(
    args: &CollectiveArgs,
    outcomes: &CaseOutcomes,
    table: &str,
    json: String,
) -> Result<ExitCode> {
    let results = outcomes.results();
    output::print(&match (args.output.json, args.output.csv) {
        (true, _) => json + "\n",
        (_, true) => write::csv(&results),
        _ if table.is_empty() => String::new(),
        _ => format!("\n{table}"),
    })?;
    if args.output.out.as_deref() == Some(Path::new("-")) {
        output::print(&files::as_list(&results)?)?;
    }
    if let Some(path) = args.table.plot.as_ref().filter(|_| !results.is_empty()) {
        plot::draw(path, &results, None)?;
    }
    if let Some(error) = &outcomes.save_error {
        bail!("the results are not saved: {error:#}");
    }
    Ok(outcomes.code())
}
