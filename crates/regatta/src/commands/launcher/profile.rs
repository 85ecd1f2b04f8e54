//! `--profile`: the profiler plug-in in the run folder, and the variables by which all ranks load it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_events::file;
use regatta_events::record::settings::{FOLDER_VARIABLE, LEVEL_VARIABLE, Level};
use regatta_launch::attempt::{AttemptSpec, env_var};
use regatta_launch::error::PartError;
use regatta_launch::parts::JobPart;
use regatta_launch::process::RankSpec;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::worker_group::{JobEvent, RankControl};
use regatta_model::result::{RunResult, StalledOperation};
use regatta_model::run_folder::COMMS;
use regatta_observe::comms_status::{Finding, Role};

use super::nccl_plugins::check_user_value;
use super::status_watch::StatusWatch;
use crate::cli::FAINT;
use crate::options::LEVELS;
use crate::{output, plugins};

/// Environment variable with the path of NCCL's and RCCL's profiler plug-in.
pub const PLUGIN_VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
/// Start of the warning about a node that records to a folder of its own.
const NOT_SEEN: &str = "this node does not see the run folder";
/// Most operations of a hang that `result.json` lists.
const MAX_OPERATIONS: usize = 64;

/// Name of a level.
pub fn level_name(level: Level) -> &'static str {
    LEVELS.iter().find(|(_, value, _)| *value == level).map_or("", |(name, ..)| name)
}

/// The profile of all attempts.
pub struct Profile {
    level: Level,
    /// A stall of this long is a hang.
    hang_after: Option<Duration>,
    watch: Option<StatusWatch>,
    /// Whether a node of this attempt records to a folder of its own, or not at all.
    is_elsewhere: bool,
}

impl Profile {
    pub fn new(level: Level, hang_after: Option<Duration>) -> Self {
        Self { level, hang_after, watch: None, is_elsewhere: false }
    }
}

impl JobPart for Profile {
    /// Sets the variables of all ranks, for a folder of event files that has the plug-in, too.
    fn plan(&mut self, attempt: &mut AttemptSpec, folder: &Path) -> Result<(), PartError> {
        let folder = folder.join(COMMS);
        let library = folder.join(plugins::PROFILER.name);
        let [Some(folder), Some(library)] = [folder.to_str(), library.to_str()] else {
            return Err("--profile needs a run folder whose path is UTF-8: pass --run-dir".into());
        };
        let variables = [
            (PLUGIN_VARIABLE, library),
            (FOLDER_VARIABLE, folder),
            (LEVEL_VARIABLE, level_name(self.level)),
        ];
        for (name, value) in variables {
            check_variable(name, attempt.job.env.get(name), value)?;
            for rank in &mut attempt.ranks {
                rank.add_variable(env_var(name, value, "collectives are recorded (--profile)"));
            }
        }
        Ok(())
    }

    /// Writes the plug-in to the run folder, and starts to read the status of the ranks.
    fn start(&mut self, attempt: &AttemptSpec, folder: &RunFolder) -> Result<(), PartError> {
        let path = folder.path().join(COMMS);
        plugins::PROFILER.install(&path)?;
        self.watch = Some(StatusWatch::start(path, attempt.hosts(), self.hang_after)?);
        self.is_elsewhere = false;
        Ok(())
    }

    fn next_event(&mut self, output_paused: bool) -> Option<JobEvent> {
        self.watch.as_mut()?.event(output_paused)
    }

    fn on_event(&mut self, event: &JobEvent) {
        self.is_elsewhere |= matches!(event, JobEvent::RunFolderUnseen(_));
        self.watch.iter_mut().for_each(|watch| watch.on_event(event));
    }

    fn on_control(&mut self, control: RankControl) {
        self.watch.iter_mut().for_each(|watch| watch.on_control(control));
    }

    /// Adds the operations that did not complete to the result of a job that failed, and a note if nothing
    /// was recorded.
    fn finish(&mut self, folder: &RunFolder, result: &mut RunResult) {
        let Some(watch) = self.watch.take() else { return };
        if result.exit_code != 0 && !result.is_stopped_early() {
            let findings = watch.judge(result.hang.is_some()).into_iter();
            result.collectives = findings.take(MAX_OPERATIONS).map(operation).collect();
        }
        if result.exit_code == 0 && !self.is_elsewhere && !has_events(folder) {
            let note = "--profile recorded nothing: the job created no NCCL or RCCL communicator, or its library \
                        did not load the plug-in, which needs NCCL 2.26 or newer (NCCL_DEBUG=INFO shows why)";
            result.notes.push(note.to_owned());
        }
    }

    /// Prints the command that shows what was recorded.
    fn conclude(&mut self, folder: &RunFolder, _: &mut RunResult) {
        if has_events(folder) {
            let path = crate::shell::quote(&folder.path().to_string_lossy());
            output::eprint(&format!("{FAINT}collectives: regatta comms {path}{FAINT:#}\n"));
        }
    }

    fn discard(&mut self, folder: &RunFolder) {
        folder.remove(COMMS, plugins::PROFILER.name);
    }
}

/// Checks a variable of the user. The level of the option counts.
fn check_variable(name: &str, user: Option<&str>, value: &str) -> Result<()> {
    match name {
        LEVEL_VARIABLE => Ok(()),
        _ => check_user_value(name, user, value, "--profile"),
    }
}

/// Adapts the ranks of a node that does not see the run folder: their events go to a folder of the node.
pub fn record_on_node(specs: &mut [RankSpec]) -> Option<String> {
    let is_recorded = |spec: &RankSpec| spec.env.iter().any(|(name, _)| name == FOLDER_VARIABLE);
    if !specs.iter().any(is_recorded) {
        return None;
    }
    let folder = node_folder();
    let path = folder.as_ref().ok();
    let library = path.map(|folder| folder.join(plugins::PROFILER.name));
    let text = |path: Option<&PathBuf>| path?.to_str().map(str::to_owned);
    for (name, value) in specs.iter_mut().flat_map(|spec| &mut spec.env) {
        match name.as_str() {
            FOLDER_VARIABLE => *value = text(path),
            PLUGIN_VARIABLE => *value = text(library.as_ref()),
            _ => {}
        }
    }
    Some(match folder {
        Ok(folder) => format!(
            "{NOT_SEEN}: the collectives of its ranks are recorded in {} \
             there, and the hang report does not know them",
            folder.display()
        ),
        Err(error) => format!(
            "{NOT_SEEN}, and the collectives of its ranks are not \
             recorded: {error}"
        ),
    })
}

/// A folder with the plug-in for all attempts of the job on this node. It must be new: ranks load the
/// library in it.
fn node_folder() -> Result<PathBuf, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let create = || -> Result<PathBuf> {
        let folder = std::env::temp_dir().join(format!("regatta-comms-{}", std::process::id()));
        let created = DirBuilder::new().mode(0o700).create(&folder);
        created.with_context(|| format!("cannot create {}", folder.display()))?;
        plugins::PROFILER.install(&folder)?;
        Ok(folder)
    };
    FOLDER.get_or_init(|| create().map_err(|error| format!("{error:#}"))).clone()
}

fn operation(finding: Finding) -> StalledOperation {
    StalledOperation {
        message: finding.message,
        ranks: finding.ranks.into_iter().collect(),
        seconds: finding.age as f64 / 1e9,
        is_consequence: finding.role == Role::Consequence,
    }
}

fn has_events(folder: &RunFolder) -> bool {
    let entries = std::fs::read_dir(folder.path().join(COMMS)).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.any(|path| path.extension().is_some_and(|extension| extension == file::EXTENSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_plugin_of_the_user_contradicts_the_option() {
        let check = |name, user| check_variable(name, user, "/run/lib.so");
        let error = check(PLUGIN_VARIABLE, Some("/opt/own.so")).unwrap_err().to_string();
        assert!(error.starts_with("NCCL_PROFILER_PLUGIN=/opt/own.so is set"), "{error}");
        assert!(check(FOLDER_VARIABLE, Some("/other")).is_err());
        for user in [None, Some(""), Some("/run/lib.so")] {
            assert!(check(PLUGIN_VARIABLE, user).is_ok(), "{user:?}");
        }
        assert!(check(LEVEL_VARIABLE, Some("steps")).is_ok(), "the option counts");
    }
}
