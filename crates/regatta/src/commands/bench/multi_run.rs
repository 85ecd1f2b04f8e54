//! Sweeps and scans: one child run per setting or node count. Each is this program again with its
//! own result file. A failed child does not end the others.

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use regatta_comm::bootstrap;
use regatta_launch::config::JobSource;
use regatta_launch::signal_catcher::SignalCatcher;
use regatta_measure::request::Backend;
use regatta_measure::sweep::Sweep;
use regatta_measure::{scaling, sweep, write};
use regatta_model::run_folder::BENCH_LOCK;
use regatta_model::{BenchResult, Operation};
use regatta_train::lock_file::{LockResult, lock_file};

use super::args::CollectiveArgs;
use super::child_run::ChildRun;
use super::{files, parent, plot, tune_nccl};
use crate::cli::HEADING;
use crate::commands::child_process;
use crate::commands::launch::{new_run_id, run_dir_or_new};
use crate::output;
use regatta_launch::discovery::Discovery;

/// Runs all children and prints the summary.
pub fn run(operations: &[Operation], args: &CollectiveArgs) -> Result<ExitCode> {
    let folder = run_dir_or_new(args.ranks.run_dir.as_ref(), &new_run_id());
    match (args.mode.scan, args.tunes_nccl()) {
        (true, _) => scan(args, &folder),
        (_, true) => tune_nccl::run(operations, args, &folder),
        _ => sweep(args, &folder),
    }
}

fn sweep(args: &CollectiveArgs, folder: &Path) -> Result<ExitCode> {
    let sweep = Sweep::parse(&args.mode.sweep)?;
    sweep.check_own_variables(&bootstrap::VARIABLES).context("--sweep")?;
    if let Some(variable) = sweep.nccl_variable()
        && let Some(backend) = parent::host_backend(&args.ranks)?
    {
        bail!("{}", ignored_variable(variable, backend.name()));
    }
    let settings = sweep.settings();
    let child = |(number, setting): (usize, &sweep::SweepSetting)| ChildRun {
        folder: folder.join(number.to_string()),
        label: setting.to_string(),
        environment: setting.variables.clone(),
        nodes: None,
        operations: Vec::new(),
    };
    let children: Vec<ChildRun> = settings.iter().enumerate().map(child).collect();
    let outcomes = run_children(args, &children, &|first| check_backend(&sweep, first))?;
    // Settings are matched by index, so a failed run keeps its place.
    let good = outcomes.children.iter().map(|child| child.good().cloned().unwrap_or_default());
    let best = sweep::best(&good.collect::<Vec<_>>(), &settings);
    let table = sweep::table(&best);
    print_summary(args, &outcomes, &table, serde_json::to_string_pretty(&best)?)
}

fn scan(args: &CollectiveArgs, folder: &Path) -> Result<ExitCode> {
    let source = JobSource {
        hostfile: args.ranks.hostfile.clone(),
        nodes: args.ranks.nodes,
        ..JobSource::default()
    };
    let nodes = Discovery::run(&source, 0)?.allocation.nodes.len() as u32;
    if nodes < 2 {
        bail!(
            "--scan needs at least two nodes: run it in an allocation of several nodes, or list them \
             in --hostfile"
        );
    }
    let counts = scaling::node_counts(nodes);
    let child = |count: &u32| ChildRun {
        folder: folder.join(format!("{count}-nodes")),
        label: regatta_model::units::pluralize(*count as usize, "node"),
        environment: Vec::new(),
        nodes: Some(*count),
        operations: Vec::new(),
    };
    let children: Vec<ChildRun> = counts.iter().map(child).collect();
    let outcomes = run_children(args, &children, &|_| Ok(()))?;
    let good = |(count, child): (u32, &ChildOutcome)| Some((count, child.good()?.clone()));
    let runs: Vec<_> = counts.into_iter().zip(&outcomes.children).filter_map(good).collect();
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
    Backend::ALL.iter().any(|backend| backend.name() == name && backend.reads_nccl_variables())
}

fn ignored_variable(variable: &str, backend: &str) -> String {
    format!(
        "--sweep {variable}: backend {backend} ignores variables of NCCL, so no setting can be better; \
         sweep REGATTA_* variables, or run on GPUs with --backend nccl"
    )
}

/// Outcomes of all child runs.
#[derive(Default)]
struct ChildOutcomes {
    /// One per started child.
    children: Vec<ChildOutcome>,
    /// The signal that interrupted the runs.
    signal: Option<i32>,
    /// Error of the last write of the combined file.
    save_error: Option<anyhow::Error>,
}

/// Outcome of a child run.
struct ChildOutcome {
    /// The saved result, even if the child failed later.
    result: Option<BenchResult>,
    failed: bool,
}

impl ChildOutcome {
    /// The result, unless the child failed: a failing setting is never the best.
    fn good(&self) -> Option<&BenchResult> {
        self.result.as_ref().filter(|_| !self.failed)
    }
}

impl ChildOutcomes {
    /// All saved results.
    fn results(&self) -> Vec<BenchResult> {
        self.children.iter().filter_map(|child| child.result.clone()).collect()
    }

    /// Writes all results to one file. A full disk must not end the runs.
    fn save(&mut self, out: &Path) {
        let text = files::as_list(&self.results());
        self.save_error = text.and_then(|text| output::write_file(out, &text)).err();
    }

    fn code(&self) -> ExitCode {
        match self.signal {
            Some(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
            None if self.children.iter().any(|child| child.failed) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// Runs the children one after the other until the last, or until a signal. `check` may refuse to go
/// on after the result of one.
fn run_children(
    args: &CollectiveArgs,
    children: &[ChildRun],
    check: &dyn Fn(&BenchResult) -> Result<()>,
) -> Result<ChildOutcomes> {
    if let Some(existing) = children.iter().map(ChildRun::out).find(|out| out.exists()) {
        bail!("{} already exists: choose another folder with --run-dir", existing.display());
    }
    let _lock = children.first().and_then(|child| lock(child.folder.parent()?));
    let mut signals = SignalCatcher::new()?;
    let mut outcomes = ChildOutcomes::default();
    for (number, child) in (1..).zip(children) {
        let heading = format!("{number} of {}: {}", children.len(), child.label);
        output::eprint(&format!("{HEADING}{heading}{HEADING:#}\n"));
        let status = child_process::wait_for(&mut command(args, child)?, &mut signals)?;
        outcomes.signal = signals.termination();
        let outcome = outcome(child, status, outcomes.signal.is_some());
        outcome.result.as_ref().map_or(Ok(()), check)?;
        outcomes.children.push(outcome);
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

/// Locks the folder of a sweep or scan, for `regatta runs`. Without a lock the runs go on.
pub fn lock(folder: &Path) -> Option<LockResult> {
    std::fs::create_dir_all(folder).ok()?;
    lock_file(&folder.join(BENCH_LOCK)).ok()
}

/// The command of a child run.
pub fn command(args: &CollectiveArgs, child: &ChildRun) -> Result<Command> {
    let program = std::env::current_exe().context("cannot locate the regatta executable")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(child.hidden_options());
    command.envs(child.environment.iter().cloned());
    if args.output.json || args.output.csv {
        command.stdout(Stdio::null());
    }
    Ok(command)
}

/// The outcome of a finished child; warns if it failed.
fn outcome(child: &ChildRun, status: ExitStatus, interrupted: bool) -> ChildOutcome {
    let mut result = files::load(&child.out()).ok().and_then(|mut all| all.pop());
    let failed = !status.success() || result.is_none();
    if failed {
        let what = if interrupted { "interrupted" } else { "failed" };
        let left = match &result {
            Some(_) => format!("partial results are in {}", child.folder.display()),
            None => "nothing was measured".to_owned(),
        };
        let note = format!("{} {what} ({status}); {left}", child.label);
        output::note(&note);
        result.iter_mut().for_each(|result| result.notes.push(note.clone()));
    }
    ChildOutcome { result, failed }
}

/// Prints the summary and the results in the requested format.
fn print_summary(
    args: &CollectiveArgs,
    outcomes: &ChildOutcomes,
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
