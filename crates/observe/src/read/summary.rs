//! What a run is, and how far it is. Only what a launch, training or benchmark wrote is recognised.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use regatta_model::result::{RunResult, is_termination_signal};
use regatta_model::run_folder::{
    BENCH_LOCK, BENCH_RESULT, CONFIG, EVENTS, LOG, Record, RunEvent, RunKind, TRAIN_LOCK,
    run_id_time, unix_seconds,
};
use serde::Serialize;

use super::lock::{self, LockState};
use super::progress::{LastMetrics, TAIL_BYTES, tail};
use super::run::{last_launch, launches};
use super::{ReadError, Run, open_regular};

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// A process holds the lock of the run.
    Running,
    /// It ended successfully.
    Finished,
    /// A signal stopped it, or it ended before the last step.
    Stopped,
    /// A rank failed, or the launcher was killed.
    Failed,
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    /// The run folder.
    pub path: PathBuf,
    /// What it did.
    pub kind: RunKind,
    /// Whether it goes on, and how it ended.
    pub state: RunState,
    /// Start, in seconds since the Unix epoch.
    pub start: f64,
    /// Last change of its files, in seconds since the Unix epoch.
    pub last_activity: f64,
    /// The last values of its metrics.
    #[serde(flatten)]
    pub last: LastMetrics,
    /// Size on disk.
    pub bytes: u64,
    /// The path is a symbolic link.
    #[serde(skip)]
    pub is_link: bool,
}

impl Run {
    /// The runs directly below a folder, newest first.
    pub fn find(root: &Path) -> Result<Vec<RunSummary>, ReadError> {
        let entries = std::fs::read_dir(root).map_err(ReadError::io(root))?;
        let found = entries.flatten().filter_map(|entry| Self::open(&entry.path()).ok());
        let mut runs: Vec<RunSummary> = found.map(|run| run.summary()).collect();
        runs.sort_by(|a, b| b.start.total_cmp(&a.start).then_with(|| b.path.cmp(&a.path)));
        Ok(runs)
    }

    /// State (see [`Self::state`]), start, progress and size, for which all files are visited.
    pub fn summary(&self) -> RunSummary {
        let path = self.path();
        let (bytes, last_activity) = usage(path);
        let last = LastMetrics::with_validation(path);
        RunSummary {
            path: path.to_owned(),
            kind: self.kind(),
            state: self.state_at(&last),
            start: start(path, last_activity),
            last_activity,
            last,
            bytes,
            is_link: path.is_symlink(),
        }
    }

    /// Whether the run goes on, and how it ended.
    pub fn state(&self) -> RunState {
        self.state_at(&LastMetrics::read(self.path()))
    }

    fn state_at(&self, last: &LastMetrics) -> RunState {
        let path = self.path();
        let locks: Vec<LockState> = lock_files(path).iter().map(|file| lock::state(file)).collect();
        if locks.contains(&LockState::Held) {
            return RunState::Running;
        }
        let ending = match path.join(BENCH_LOCK).is_file() {
            true => launches(path),
            false => vec![last_launch(path)],
        };
        let results: Vec<Option<RunResult>> =
            ending.iter().map(|launch| launch.result().ok().flatten()).collect();
        let ended = results.iter().all(Option::is_some);
        if locks.contains(&LockState::Unsupported) && !ended {
            return RunState::Running;
        }
        let events = tail(&last_launch(path).path().join(EVENTS), TAIL_BYTES);
        let is_signalled = events.iter().any(is_termination)
            || results.iter().flatten().any(RunResult::is_stopped_early);
        let has_steps_left = last.step.zip(last.steps).is_some_and(|(step, steps)| step < steps);
        let succeeded = results.iter().flatten().all(|result| result.exit_code == 0);
        // Ranks of a scheduler write no result.
        let is_complete =
            ended || self.kind() == RunKind::Train && last.step.is_some() && !has_steps_left;
        match (is_complete && succeeded, is_signalled) {
            (_, true) => RunState::Stopped,
            (true, _) if has_steps_left => RunState::Stopped,
            (true, _) => RunState::Finished,
            (false, _) => RunState::Failed,
        }
    }
}

/// The kind of a run folder, by files that only regatta writes together.
pub(super) fn kind(path: &Path) -> Option<RunKind> {
    let has = |name: &str| path.join(name).is_file();
    let is_launch = has(EVENTS) && path.join(LOG).is_dir();
    // Ranks that a scheduler started have no launcher.
    if has(CONFIG) && (is_launch || has(TRAIN_LOCK)) {
        return Some(RunKind::Train);
    }
    if has(BENCH_LOCK) || is_launch && has(BENCH_RESULT) {
        return Some(RunKind::Bench);
    }
    // A training or benchmark that failed early has written none of its own files.
    is_launch.then(|| recorded_kind(path).unwrap_or(RunKind::Launch))
}

/// The kind of a launch, from its first event. Earlier versions recorded only the command.
fn recorded_kind(path: &Path) -> Option<RunKind> {
    let mut line = Vec::new();
    let events = open_regular(&path.join(EVENTS)).ok()??.take(TAIL_BYTES);
    BufReader::new(events).read_until(b'\n', &mut line).ok()?;
    let RunEvent::Launched { command, kind, .. } = Record::parse(&line).ok()?.event else {
        return None;
    };
    let is_regatta = |program| Path::new(program).ends_with("regatta");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    // The user's command may be regatta's own.
    kind.filter(|kind| *kind != RunKind::Launch).or_else(|| match words[..] {
        [program, "train", ..] if is_regatta(program) => Some(RunKind::Train),
        [program, "bench", ..] if is_regatta(program) => Some(RunKind::Bench),
        _ => None,
    })
}

/// Files that processes of a running run have locked.
pub fn lock_files(path: &Path) -> Vec<PathBuf> {
    let mut files = [TRAIN_LOCK, BENCH_LOCK].map(|name| path.join(name)).to_vec();
    files.extend(launches(path).iter().map(|launch| launch.path().join(EVENTS)));
    files.retain(|file| file.is_file());
    files
}

/// Whether a record is a signal that ends the job.
fn is_termination(record: &Record) -> bool {
    matches!(record.event, RunEvent::SignalReceived { signal } if is_termination_signal(signal))
}

/// Start, in seconds since the Unix epoch: from the run ID that names the folder, else the creation
/// of the folder, where the file system records it.
fn start(path: &Path, last_activity: f64) -> f64 {
    let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let by_id = run_id_time(id);
    let created = || std::fs::metadata(path).and_then(|found| found.created()).ok();
    by_id.or_else(created).map_or(last_activity, unix_seconds)
}

/// Size on disk and last change of a folder. Links are not followed.
fn usage(path: &Path) -> (u64, f64) {
    let Ok(entries) = std::fs::read_dir(path) else { return (0, 0.0) };
    let mut total = (0, 0.0);
    for entry in entries.flatten() {
        let Ok(found) = entry.metadata() else { continue };
        let (bytes, time) = match found.is_dir() {
            true => usage(&entry.path()),
            false => (found.blocks() * 512, found.modified().map_or(0.0, unix_seconds)),
        };
        total = (total.0 + bytes, f64::max(total.1, time));
    }
    total
}
