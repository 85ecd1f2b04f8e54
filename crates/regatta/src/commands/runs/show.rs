//! `regatta runs show`: one run in detail.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use regatta_model::result::RunResult;
use regatta_model::{run_folder, units};
use regatta_observe::read::{Run, RunSummary, last_launch};
use regatta_train::config::KEYS;
use regatta_train::run_paths;
use serde::Serialize;

use super::{colored, start_time};
use crate::args::runs::ShowArgs;
use crate::cli::{FAINT, HEADING};
use crate::output;

/// A run in detail.
#[derive(Debug, Serialize)]
struct RunDetails {
    #[serde(flatten)]
    run: RunSummary,
    /// Settings that differ from the default.
    settings: Vec<Setting>,
    checkpoint_dir: Option<PathBuf>,
    /// Names of the checkpoints, oldest first.
    checkpoints: Vec<String>,
    result: Option<RunResult>,
}

#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    value: String,
}

/// Runs the command.
pub fn run(args: &ShowArgs) -> Result<()> {
    let below_root = args.root.root.join(&args.run);
    let path = match (args.run.exists(), below_root.exists()) {
        (true, _) => args.run.clone(),
        (false, true) => below_root,
        (false, false) => {
            let (run, below_root) = (args.run.display(), below_root.display());
            bail!("{run} does not exist, nor does {below_root}; `regatta runs` lists the runs");
        }
    };
    let run = Run::open(&path)?;
    let checkpoint_dir = Some(run_paths::find_checkpoint_dir(&path)).filter(|dir| *dir != path);
    let details = RunDetails {
        run: run.summary(),
        settings: settings(&path),
        checkpoints: checkpoint_dir.as_deref().map(checkpoints).unwrap_or_default(),
        checkpoint_dir,
        result: run.last_launch().result().ok().flatten(),
    };
    output::print_report(args.json, || output::json_lines(&details), || text(&details))
}

/// The settings of a training that differ from the default.
fn settings(path: &Path) -> Vec<Setting> {
    let Some(config) = run_paths::saved_config(path) else { return Vec::new() };
    let changed = KEYS.iter().filter(|key| key.get(&config) != key.default());
    changed.map(|key| Setting { key: key.full_name(), value: key.get(&config) }).collect()
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_step = |name: &String| {
        let digits = name.strip_prefix("step-");
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut names: Vec<String> = names.filter(is_step).collect();
    names.sort();
    names
}

fn text(details: &RunDetails) -> String {
    let RunDetails { run, settings, result, .. } = details;
    let state = colored(run.state);
    let reason = result.as_ref().map_or_else(String::new, |result| format!(": {}", result.reason));
    let mut lines = vec![("state", format!("{state}{reason}"))];
    if let Some(result) = result {
        let seconds = units::format_duration(result.seconds);
        let restarts = units::pluralize(result.restarts as usize, "restart");
        lines.push(("command", result.command.join(" ")));
        lines.push(("ranks", format!("{}, {restarts}, {seconds}", result.ranks)));
    }
    lines.push(("start", format!("{} UTC", start_time(run))));
    if let (Some(step), Some(steps)) = (run.last.step, run.last.steps) {
        let value = |name, value: Option<f64>| {
            value.map_or_else(String::new, |value| format!(", {name} {value:.4}"))
        };
        let losses = value("loss", run.last.loss) + &value("val", run.last.val_loss);
        lines.push(("step", format!("{step} of {steps}{losses}")));
    }
    lines.extend(checkpoint_line(details).map(|line| ("checkpoints", line)));
    lines.push(("size", units::format_bytes(run.bytes)));
    lines.push(("logs", last_launch(&run.path).path().join(run_folder::LOG).display().to_string()));
    lines.extend(
        settings.iter().map(|Setting { key, value }| ("setting", format!("{key} = {value}"))),
    );
    let line = |(name, value): &(&str, String)| format!("  {FAINT}{name:<12}{FAINT:#}{value}\n");
    let (path, kind) = (run.path.display(), run.kind);
    let lines: String = lines.iter().map(line).collect();
    format!("{HEADING}{path}{HEADING:#} ({kind})\n{lines}")
}

fn checkpoint_line(details: &RunDetails) -> Option<String> {
    let dir = details.checkpoint_dir.as_ref()?.display();
    Some(match details.checkpoints.as_slice() {
        [] => format!("none in {dir}"),
        [.., last] => format!("{} in {dir}, the latest {last}", details.checkpoints.len()),
    })
}
