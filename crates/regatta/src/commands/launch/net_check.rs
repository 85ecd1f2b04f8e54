//! `--check-net` and `--require-net`: NCCL's debug log of each rank goes to a file of the run folder, which a
//! thread reads while the job runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_launch::attempt::{AttemptSpec, env_var};
use regatta_launch::error::PartError;
use regatta_launch::parts::JobPart;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::worker_group::JobEvent;
use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_model::run_folder::{NET_LOGS, NET_REPORT, attempt_folder};
use regatta_observe::net_log::report::{Level, report};
use regatta_observe::net_log::{NetLog, NetReport, Requirement, SourceId};

use crate::cli::FAINT;
use crate::commands::net_log::{self, failed_requirement, render};
use crate::output;

/// Interval of reading the logs, per `RANKS_PER_INTERVAL` ranks: file systems have other work.
const INTERVAL: Duration = Duration::from_millis(250);
const RANKS_PER_INTERVAL: usize = 256;
/// Time between the first violation and the end of the job, in which other ranks log theirs.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Most bytes of a log that are read at a time, and in total: a job that logs every operation
/// (`NCCL_DEBUG=TRACE`) has said all about its network before that.
const CHUNK: usize = 1 << 20;
const MAX_LOG: u64 = 256 << 20;
/// Subsystems that log network, plug-in, channels and variables.
const SUBSYSTEMS: &str = "INIT,BOOTSTRAP,NET,ENV";

/// Variables that make NCCL log what is checked.
#[derive(Debug, PartialEq, Eq)]
struct DebugSettings {
    /// Variables to set, besides the file of each rank.
    set: Vec<(&'static str, &'static str)>,
    /// The user's own settings, which are kept.
    notes: Vec<String>,
    /// Why nothing can be checked.
    obstacle: Option<String>,
}

/// Decides on the variables, given the user's own.
fn debug_settings<'a>(user: impl Fn(&str) -> Option<&'a str>) -> DebugSettings {
    let mut settings = DebugSettings { set: Vec::new(), notes: Vec::new(), obstacle: None };
    match user("NCCL_DEBUG") {
        None => settings.set.push(("NCCL_DEBUG", "INFO")),
        Some(level) if ["INFO", "TRACE"].iter().any(|l| l.eq_ignore_ascii_case(level)) => {
            settings.notes.push(format!("NCCL_DEBUG={level} of the environment is kept"));
        }
        Some(level) => {
            let text = format!("NCCL_DEBUG={level} logs too little: unset it, or set it to INFO");
            settings.obstacle = Some(text);
        }
    }
    match user("NCCL_DEBUG_SUBSYS") {
        None => settings.set.push(("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)),
        Some(value) => {
            // `^` excludes the subsystems that follow.
            let list = value.to_ascii_uppercase();
            let is_named = |name: &str| list.trim_start_matches('^').split(',').any(|s| s == name);
            let missing = (is_named("INIT") || is_named("ALL")) == list.starts_with('^');
            let why = if missing { ", and logs no channels: add INIT" } else { "" };
            settings
                .notes
                .push(format!("NCCL_DEBUG_SUBSYS={value} of the environment is kept{why}"));
        }
    }
    if let Some(file) = user("NCCL_DEBUG_FILE") {
        settings.obstacle = Some(format!(
            "NCCL_DEBUG_FILE={file} is set, so the logs are there: unset it, or read them with \
             `regatta net-log`"
        ));
    }
    settings
}

/// What the thread has found.
enum Update {
    /// All ranks are connected.
    Connected(Box<NetReport>),
    /// A rank violates the requirement.
    Violated(Box<NetReport>),
}

/// A check of the network of all attempts.
pub struct NetCheck {
    requirement: Option<Requirement>,
    /// Folder of the logs of an attempt, if the network is checked.
    logs: Option<PathBuf>,
    running: Option<RunningCheck>,
}

/// A check of an attempt.
struct RunningCheck {
    updates: Receiver<Update>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<NetReport>,
    /// The verdict that was shown.
    shown: Option<String>,
}

impl NetCheck {
    /// A check that fails the job on other networks than the required.
    pub fn new(requirement: Option<Requirement>) -> Self {
        Self { requirement, logs: None, running: None }
    }

    /// The variables of all ranks besides the file of each; `None` if nothing can be checked.
    fn variables(&self, plan: &AttemptSpec) -> Result<Option<Vec<(&'static str, &'static str)>>> {
        let settings = debug_settings(|name| plan.job.env.get(name));
        if plan.number == 0 {
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
    fn plan(&mut self, plan: &mut AttemptSpec, folder: &Path) -> Result<(), PartError> {
        let mut logs = folder.join(NET_LOGS);
        logs.extend(attempt_folder(plan.number));
        self.logs = None;
        let Some(common) = self.variables(plan)? else { return Ok(()) };
        let Some(text) = logs.to_str() else {
            return Err("--check-net needs a run folder whose path is UTF-8: pass --run-dir".into());
        };
        for rank in &mut plan.ranks {
            let file = format!("{text}/{}", net_log::log_name(rank.spec.rank));
            let common = common.iter().map(|&(name, value)| (name, value.to_owned()));
            for (name, value) in common.chain([("NCCL_DEBUG_FILE", file)]) {
                rank.add_variable(env_var(name, value, "the network is checked (--check-net)"));
            }
        }
        self.logs = Some(logs);
        Ok(())
    }

    /// Starts to read the logs.
    fn start(&mut self, plan: &AttemptSpec, _: &RunFolder) -> Result<(), PartError> {
        if let Some(logs) = &self.logs {
            std::fs::create_dir_all(logs)
                .with_context(|| format!("cannot create {}", logs.display()))?;
            let ranks = plan.ranks.len();
            self.running = Some(RunningCheck::spawn(logs, ranks, self.requirement.clone())?);
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
    fn spawn(logs: &Path, ranks: usize, requirement: Option<Requirement>) -> Result<Self> {
        let (sender, updates) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let reader = Reader::new(logs, ranks, requirement, sender);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("net-check".to_owned());
        let thread = thread.spawn(move || reader.run(&stopped)).context("start a thread")?;
        Ok(Self { updates, stop, thread, shown: None })
    }

    /// The next event for the job.
    fn event(&mut self) -> Option<JobEvent> {
        match self.updates.try_recv().ok()? {
            Update::Connected(report) => {
                self.shown = Some(report.verdict.clone());
                let text = format!("{FAINT}all ranks have connected{FAINT:#}\n{}", render(&report));
                Some(JobEvent::Notice(text))
            }
            Update::Violated(report) => Some(JobEvent::CheckFailed { why: violation(&report) }),
        }
    }

    /// Stops reading, writes the report to the run folder and prints it, unless it has been shown. A job
    /// that succeeded without proof of the required network fails.
    fn finish(self, folder: &RunFolder, result: &mut RunResult) {
        self.stop.store(true, Ordering::Relaxed);
        let Ok(report) = self.thread.join() else { return };
        let json = document::to_json(&report);
        match json
            .map_err(anyhow::Error::from)
            .and_then(|json| Ok(folder.write(NET_REPORT, &json)?))
        {
            Ok(()) => {}
            Err(error) => output::note(&format!("{error:#}")),
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

/// Reads the logs of all ranks.
struct Reader {
    log: NetLog,
    files: Vec<RankLog>,
    requirement: Option<Requirement>,
    updates: Sender<Update>,
    /// When the requirement was first violated.
    violated: Option<Instant>,
    /// Whether everything has been reported.
    done: bool,
}

struct RankLog {
    path: PathBuf,
    source: SourceId,
    read: u64,
}

impl Reader {
    fn new(
        logs: &Path,
        ranks: usize,
        requirement: Option<Requirement>,
        updates: Sender<Update>,
    ) -> Self {
        let mut log = NetLog::default();
        let file = |rank: u32| {
            let path = logs.join(net_log::log_name(rank));
            let source = log.add_source(&path.display().to_string(), Some(rank));
            RankLog { path, source, read: 0 }
        };
        let files = (0..ranks as u32).map(file).collect();
        Self { log, files, requirement, updates, violated: None, done: false }
    }

    /// Reads until it is stopped, and returns the last report.
    fn run(mut self, stop: &AtomicBool) -> NetReport {
        let interval = INTERVAL * self.files.len().div_ceil(RANKS_PER_INTERVAL).max(1) as u32;
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if !self.done && Instant::now() >= next {
                let has_news = self.read_all();
                self.check(has_news);
                next = Instant::now() + interval;
            }
            std::thread::sleep(INTERVAL / 10);
        }
        while self.read_all() {}
        for file in &self.files {
            self.log.finish(file.source);
        }
        report(&self.log, self.requirement.as_ref())
    }

    /// Reads what is new; returns whether there was anything.
    fn read_all(&mut self) -> bool {
        let mut chunk = vec![0; CHUNK];
        let mut has_news = false;
        for file in &mut self.files {
            // The rank may not have created it yet.
            let length = read_from(&file.path, file.read, &mut chunk).unwrap_or(0);
            if length > 0 && file.read < MAX_LOG {
                self.log.read(file.source, &chunk[..length]);
                file.read += length as u64;
                has_news = true;
            }
        }
        has_news
    }

    fn check(&mut self, has_news: bool) {
        let (connected, _) = self.log.progress();
        let all_connected = connected >= self.files.len();
        if !has_news && self.violated.is_none() {
            return;
        }
        let required = self.requirement.as_ref();
        let violated = required.is_some_and(|required| {
            let report = report(&self.log, None);
            required.is_violated(&report)
        });
        if violated {
            let since = *self.violated.get_or_insert_with(Instant::now);
            if all_connected || since.elapsed() >= SETTLE_TIME {
                self.send(Update::Violated);
            }
        } else if all_connected {
            self.send(Update::Connected);
        }
    }

    fn send(&mut self, update: impl Fn(Box<NetReport>) -> Update) {
        let report = report(&self.log, self.requirement.as_ref());
        // The receiver is gone if the job has ended.
        let _ = self.updates.send(update(Box::new(report)));
        self.done = true;
    }
}

fn read_from(path: &Path, offset: u64, chunk: &mut [u8]) -> std::io::Result<usize> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(user: &[(&str, &'static str)]) -> DebugSettings {
        debug_settings(|name| user.iter().find(|(n, _)| *n == name).map(|(_, value)| *value))
    }

    #[test]
    fn own_settings_are_kept_and_named() {
        let default = settings(&[]);
        assert_eq!(default.set, [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)]);
        assert!(default.notes.is_empty() && default.obstacle.is_none());

        let own = settings(&[("NCCL_DEBUG", "trace"), ("NCCL_DEBUG_SUBSYS", "NET")]);
        assert!(own.set.is_empty() && own.obstacle.is_none());
        assert!(
            own.notes[1].contains("NCCL_DEBUG_SUBSYS=NET of the environment is kept, and logs no")
        );
        for complete in ["INIT,NET", "ALL", "^COLL", "all"] {
            let notes = settings(&[("NCCL_DEBUG_SUBSYS", complete)]).notes;
            assert!(notes[0].ends_with("is kept"), "{notes:?}");
        }
        let notes = settings(&[("NCCL_DEBUG_SUBSYS", "^INIT")]).notes;
        assert!(notes[0].ends_with("add INIT"), "{notes:?}");
    }

    #[test]
    fn settings_that_hide_the_log_are_obstacles() {
        let obstacle = |name, value| settings(&[(name, value)]).obstacle.unwrap();
        assert!(obstacle("NCCL_DEBUG", "WARN").contains("NCCL_DEBUG=WARN logs too little"));
        assert!(obstacle("NCCL_DEBUG_FILE", "/tmp/x").contains("NCCL_DEBUG_FILE=/tmp/x is set"));
    }
}
