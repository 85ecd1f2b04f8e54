//! `--check-net` and `--require-net`: NCCL's debug log of each rank goes to a file of the run folder, which a
//! thread reads while the job runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_launch::attempt::{AttemptRank, AttemptSpec, env_var};
use regatta_launch::error::PartError;
use regatta_launch::parts::JobPart;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::worker_group::JobEvent;
use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_model::run_folder::{NET_LOGS, NET_REPORT, attempt_folder, net_log_name};
use regatta_observe::collect::{NetLogWatch, NetUpdate};
use regatta_observe::net_log::report::Level;
use regatta_observe::net_log::{DebugSettings, NetReport, Requirement};

use crate::cli::FAINT;
use crate::commands::net_log::{self, failed_requirement, render};
use crate::output;

/// A check of the network of all attempts.
pub struct NetCheck {
    requirement: Option<Requirement>,
    /// Folder of the logs of an attempt, if the network is checked.
    logs: Option<PathBuf>,
    running: Option<RunningCheck>,
}

/// A check of an attempt.
struct RunningCheck {
    watch: NetLogWatch,
    /// The verdict that was shown.
    shown: Option<String>,
}

impl NetCheck {
    /// A check that fails the job on other networks than the required.
    pub fn new(requirement: Option<Requirement>) -> Self {
        Self { requirement, logs: None, running: None }
    }

    /// The variables of all ranks besides the file of each; `None` if nothing can be checked.
    fn variables(
        &self,
        attempt: &AttemptSpec,
    ) -> Result<Option<Vec<(&'static str, &'static str)>>> {
        let settings = DebugSettings::new(|name| attempt.job.env.get(name));
        if attempt.number == 0 {
            settings.notes.iter().for_each(|note| output::note(&format!("--check-net: {note}")));
        }
        match (settings.obstacle, &self.requirement) {
            (Some(obstacle), Some(_)) => {
                bail!("--require-net cannot check the network: {obstacle}")
            }
            (Some(obstacle), None) => {
                output::note(&format!("--check-net checks nothing: {obstacle}"));
                Ok(None)
            }
            (None, _) => Ok(Some(settings.set)),
        }
    }
}

impl JobPart for NetCheck {
    /// Sets the variables of all ranks, whose logs go to a folder.
    fn plan(&mut self, attempt: &mut AttemptSpec, folder: &Path) -> Result<(), PartError> {
        let mut logs = folder.join(NET_LOGS);
        logs.extend(attempt_folder(attempt.number));
        self.logs = None;
        let Some(common) = self.variables(attempt)? else { return Ok(()) };
        let Some(text) = logs.to_str() else {
            return Err("--check-net needs a run folder whose path is UTF-8: pass --run-dir".into());
        };
        for rank in &mut attempt.ranks {
            let file = format!("{text}/{}", net_log_name(rank.spec.rank));
            let common = common.iter().map(|&(name, value)| (name, value.to_owned()));
            for (name, value) in common.chain([("NCCL_DEBUG_FILE", file)]) {
                rank.add_variable(env_var(name, value, "the network is checked (--check-net)"));
            }
        }
        self.logs = Some(logs);
        Ok(())
    }

    /// Starts to read the logs.
    fn start(&mut self, attempt: &AttemptSpec, _: &RunFolder) -> Result<(), PartError> {
        if let Some(logs) = &self.logs {
            std::fs::create_dir_all(logs)
                .with_context(|| format!("cannot create {}", logs.display()))?;
            let log = |rank: &AttemptRank| logs.join(net_log_name(rank.spec.rank));
            let logs = attempt.ranks.iter().map(log).collect();
            let watch = NetLogWatch::start(logs, self.requirement.clone());
            self.running =
                Some(RunningCheck { watch: watch.context("start a thread")?, shown: None });
        }
        Ok(())
    }

    fn next_event(&mut self, _: bool) -> Option<JobEvent> {
        self.running.as_mut()?.event()
    }

    fn conclude(&mut self, folder: &RunFolder, result: &mut RunResult) {
        if let Some(check) = self.running.take() {
            check.finish(folder, result);
        }
    }
}

impl RunningCheck {
    /// The next event for the job.
    fn event(&mut self) -> Option<JobEvent> {
        match self.watch.next_update()? {
            NetUpdate::Connected(report) => {
                self.shown = Some(report.verdict.clone());
                let text = format!("{FAINT}all ranks have connected{FAINT:#}\n{}", render(&report));
                Some(JobEvent::Notice(text))
            }
            NetUpdate::Violated(report) => Some(JobEvent::CheckFailed { why: violation(&report) }),
        }
    }

    /// Stops reading, writes the report to the run folder and prints it, unless it has been shown. A job
    /// that succeeded without proof of the required network fails.
    fn finish(self, folder: &RunFolder, result: &mut RunResult) {
        let Some(report) = self.watch.finish() else { return };
        let write =
            || -> Result<()> { Ok(folder.write(NET_REPORT, &document::to_json(&report)?)?) };
        if let Err(error) = write() {
            output::note(&format!("{error:#}"));
        }
        let is_shown = self.shown.as_ref() == Some(&report.verdict);
        if !is_shown {
            output::eprint(&render(&report));
        } else if report.level > Level::Note {
            output::eprint(&net_log::verdict_line(&report));
        }
        if failed_requirement(&report) && result.exit_code == 0 {
            (result.exit_code, result.reason) = (1, violation(&report));
            output::error(&result.reason);
        }
    }
}

/// Why a job fails, with the fix.
fn violation(report: &NetReport) -> String {
    let Some(result) = &report.requirement else { return report.verdict.clone() };
    let reason = result.reason.as_deref().unwrap_or("not fulfilled");
    let fix = result.fix.as_ref().map_or(String::new(), |fix| format!("; fix: {fix}"));
    format!("--require-net {}: {reason}{fix}", result.network)
}
