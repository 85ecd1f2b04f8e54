//! `regatta runs`: lists, shows and removes run folders.

pub mod no_checkpoint;
mod prune;
mod show;

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use regatta_draw::table;
use regatta_model::run_folder::{ROOT, utc_date};
use regatta_model::units;

use crate::args::runs::{ListArgs, RunsArgs, RunsCommand};
use crate::cli::{ERROR, GOOD, WARNING};
use crate::output;
use regatta_observe::read::{Run, RunState, RunSummary};

/// Runs the command.
pub fn run(args: &RunsArgs) -> Result<()> {
    match &args.command {
        None => list(&args.list),
        Some(RunsCommand::Show(args)) => show::run(args),
        Some(RunsCommand::Prune(args)) => prune::run(args),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let root = &args.root.root;
    let runs = find(root)?;
    if args.json {
        return output::print(&output::json_lines(&runs)?);
    }
    if runs.is_empty() {
        let root = root.display();
        output::eprint(&format!("no run folders in {root}: name another folder with --root\n"));
        return Ok(());
    }
    output::print(&table(&runs))
}

/// The runs of a folder, newest first. The default folder may not exist yet.
fn find(root: &Path) -> Result<Vec<RunSummary>> {
    if root == Path::new(ROOT) && !root.exists() {
        return Ok(Vec::new());
    }
    Ok(Run::find(root)?)
}

fn table(runs: &[RunSummary]) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    let row = |run: &RunSummary| {
        let steps = match (run.last.step, run.last.steps) {
            (Some(step), Some(steps)) => format!("{step}/{steps}"),
            _ => "-".to_owned(),
        };
        vec![
            run.path.display().to_string(),
            run.kind.to_string(),
            colored(run.state),
            start_time(run),
            steps,
            number(run.last.loss),
            number(run.last.val_loss),
            units::format_bytes(run.bytes),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let header = ["run", "kind", "state", "start (UTC)", "step", "loss", "val", "size"];
    table::with_dim_header(&header, &rows, &[0, 1, 2, 3])
}

/// The state in its colour.
fn colored(state: RunState) -> String {
    let style = match state {
        RunState::Running | RunState::Finished => GOOD,
        RunState::Stopped => WARNING,
        RunState::Failed => ERROR,
    };
    format!("{style}{state}{style:#}")
}

/// Start of a run, as `2026-11-16 15:30`.
fn start_time(run: &RunSummary) -> String {
    let seconds = run.start as u64;
    let date = utc_date(UNIX_EPOCH + Duration::from_secs(seconds));
    format!("{date} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}
