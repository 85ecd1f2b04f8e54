//! `regatta runs`: lists, shows and removes run folders.

pub mod no_checkpoint;
mod prune;
mod show;

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use clap::{Args, Subcommand};
use regatta_draw::table;
use regatta_model::run_folder::{ROOT, utc_date};
use regatta_model::units;

use crate::cli::{ERROR, GOOD, WARNING};
use crate::output;
use regatta_observe::read::{Run, RunState, RunSummary};

/// `regatta runs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArgs {
    /// Action [default: list]
    #[command(subcommand)]
    command: Option<RunsCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// Show one run: settings, checkpoints, last metrics and result
    Show(show::ShowArgs),
    /// Remove old run folders, never a running one; without --yes, only list them
    Prune(prune::PruneArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    root: RootArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Where the run folders are.
#[derive(Debug, Args)]
struct RootArgs {
    /// Folder that contains the run folders
    #[arg(long, value_name = "FOLDER", default_value = ROOT)]
    root: PathBuf,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta runs                                  the run folders below runs/, newest first
  regatta runs --root /scratch/me/runs --json   those of another folder, for a script
  regatta runs show mine                        settings, checkpoints, last metrics, result
  regatta runs prune --keep 10                  which runs would go; add --yes to remove them
  regatta runs prune --older-than 30d --yes     remove runs without activity for 30 days

States: running (a process holds the lock of the run), finished, stopped (by a signal, or before the
last step: `regatta train --resume RUN` continues), failed (a rank failed, or the launcher was killed).";

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
        return output::print(&(serde_json::to_string_pretty(&runs)? + "\n"));
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
            run.kind.name().to_owned(),
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
    format!("{style}{}{style:#}", state.name())
}

/// Start of a run, as `2026-11-16 15:30`.
fn start_time(run: &RunSummary) -> String {
    let seconds = run.start as u64;
    let date = utc_date(UNIX_EPOCH + Duration::from_secs(seconds));
    format!("{date} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}
