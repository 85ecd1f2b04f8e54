//! `regatta runs prune`: removes old run folders. Only folders with nothing but files of regatta are
//! removed, and only while their locks are held, so that no run can start in them meanwhile.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use regatta_model::run_folder::{EVENTS, LOG, is_own_name, unix_seconds};
use regatta_model::units;
use regatta_observe::read::lock::lock_all;
use regatta_observe::read::{Run, RunState, RunSummary, lock_files};
use serde::Serialize;

use super::start_time;
use crate::args::runs::PruneArgs;
use crate::cli::{FAINT, HEADING};
use crate::output;

/// What happens to a run that the options select.
#[derive(Debug, Serialize)]
struct PrunedRun {
    #[serde(flatten)]
    run: RunSummary,
    removed: bool,
    /// Why it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
}

/// Runs the command.
pub fn run(args: &PruneArgs) -> Result<()> {
    let runs = super::find(&args.root.root)?;
    let now = unix_seconds(SystemTime::now());
    let mut pruned = Vec::new();
    for run in selected(runs, args.keep, args.older_than, now) {
        let mut kept = obstacle(&run);
        if args.yes && kept.is_none() {
            kept = remove(&run.path)?;
        }
        pruned.push(PrunedRun { removed: args.yes && kept.is_none(), kept, run });
    }
    output::print_report(args.json, || output::json_lines(&pruned), || text(&pruned, args.yes))
}

/// The runs, newest first, that `--keep` and `--older-than` select for removal.
fn selected(
    runs: Vec<RunSummary>,
    keep: Option<usize>,
    older_than: Option<Duration>,
    now: f64,
) -> Vec<RunSummary> {
    let is_old =
        |run: &RunSummary| older_than.is_none_or(|age| now - run.last_activity > age.as_secs_f64());
    runs.into_iter().skip(keep.unwrap_or(0)).filter(is_old).collect()
}

/// Why a run must not be removed.
fn obstacle(run: &RunSummary) -> Option<String> {
    if run.state == RunState::Running {
        return Some("it is running".to_owned());
    }
    if run.is_link {
        return Some("it is a symbolic link".to_owned());
    }
    let foreign = foreign_file(&run.path)?;
    Some(format!("it contains {foreign:?}, which regatta did not write"))
}

/// The first file at the top of a run folder that regatta did not write. Folders in a sweep or scan
/// are run folders.
fn foreign_file(path: &Path) -> Option<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_foreign = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_child = !entry.path().is_symlink() && Run::open(&entry.path()).is_ok();
        !(is_own_name(&name) || is_child && foreign_file(&entry.path()).is_none())
    };
    let mut foreign: Vec<_> = entries.filter(is_foreign).map(|entry| entry.file_name()).collect();
    foreign.sort();
    foreign.first().map(|name| name.to_string_lossy().into_owned())
}

/// Removes a run folder, without following links. Returns why it is kept if a run has just started
/// in it.
fn remove(path: &Path) -> Result<Option<String>> {
    let Some(_locks) = lock_all(&lock_files(path)) else {
        return Ok(Some("it is running".to_owned()));
    };
    let remove = || -> std::io::Result<()> {
        // The events last: what an interrupted removal leaves is still a run folder.
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                _ if [EVENTS, LOG].iter().any(|name| entry.file_name() == *name) => {}
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
        std::fs::remove_dir_all(path)
    };
    remove().with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(None)
}

fn text(pruned: &[PrunedRun], yes: bool) -> String {
    let line = |one: &PrunedRun| {
        let PrunedRun { run, removed, kept } = one;
        let (path, size) = (run.path.display(), units::format_bytes(run.bytes));
        let about = format!("{}, {}, {size}", run.state, start_time(run));
        match (kept, removed) {
            (Some(why), _) => format!("kept          {path}  {FAINT}{why}{FAINT:#}\n"),
            (None, true) => format!("removed       {path}  {FAINT}{about}{FAINT:#}\n"),
            (None, false) => format!("would remove  {path}  {FAINT}{about}{FAINT:#}\n"),
        }
    };
    let lines: String = pruned.iter().map(line).collect();
    let going: Vec<&PrunedRun> = pruned.iter().filter(|one| one.kept.is_none()).collect();
    let size = units::format_bytes(going.iter().map(|one| one.run.bytes).sum());
    let runs = units::pluralize(going.len(), "run");
    let end = match (going.is_empty(), yes) {
        (true, _) => "nothing to remove".to_owned(),
        (_, true) => format!("removed {runs}, {size}"),
        (_, false) => format!("{runs}, {size}: add {HEADING}--yes{HEADING:#} to remove them"),
    };
    format!("{lines}{end}\n")
}

#[cfg(test)]
mod tests {
    use regatta_model::run_folder::RunKind;
    use regatta_observe::read::LastMetrics;

    use super::*;

    fn run(name: &str, start: f64, last_activity: f64) -> RunSummary {
        RunSummary {
            path: name.into(),
            kind: RunKind::Launch,
            state: RunState::Finished,
            start,
            last_activity,
            last: LastMetrics::default(),
            bytes: 0,
            is_link: false,
        }
    }

    #[test]
    fn keep_and_age_must_both_allow_a_removal() {
        let all = || vec![run("c", 30.0, 30.0), run("b", 20.0, 95.0), run("a", 10.0, 10.0)];
        let names = |keep, age: Option<u64>| {
            let left = selected(all(), keep, age.map(Duration::from_secs), 100.0);
            left.iter().map(|run| run.path.display().to_string()).collect::<String>()
        };
        assert_eq!(names(Some(1), None), "ba");
        assert_eq!(names(None, Some(50)), "ca");
        assert_eq!(names(Some(1), Some(50)), "a");
        assert_eq!((names(Some(3), None), names(None, Some(1000))), (String::new(), String::new()));
    }
}
