//! Reads run folders. Only what a launch, training or benchmark wrote is recognised.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use regatta_launch::signals::is_termination_signal;
use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_model::run_folder::{
    BENCH_LOCK, BENCH_RESULT, CONFIG, EVENTS, LOG, METRICS, RELAUNCH, RESULT, TRAIN_LOCK,
};
use regatta_train::regular_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::locks::{self, LockState};

/// Bytes to read from the end of a file of JSON lines, which may have millions of lines.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of metrics in which the last validation is searched.
const MAX_TAIL_BYTES: u64 = 64 << 20;
/// Maximum size of a result: that of a million ranks, with room to spare.
const MAX_RESULT_BYTES: u64 = 1 << 30;

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunKind {
    Train,
    Bench,
    Launch,
}

impl RunKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Bench => "bench",
            Self::Launch => "launch",
        }
    }
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    Running,
    Finished,
    Stopped,
    Failed,
}

impl RunState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    pub path: PathBuf,
    pub kind: RunKind,
    pub state: RunState,
    /// Start, in seconds since the Unix epoch.
    pub start: f64,
    /// Last change of its files, in seconds since the Unix epoch.
    pub last_activity: f64,
    /// Last step recorded.
    pub step: Option<u64>,
    /// Steps of the training.
    pub steps: Option<u64>,
    pub loss: Option<f64>,
    pub val_loss: Option<f64>,
    /// Size on disk.
    pub bytes: u64,
    /// The path is a symbolic link.
    #[serde(skip)]
    pub is_link: bool,
}

/// The runs directly below a folder, newest first.
pub fn find(root: &Path) -> Result<Vec<RunSummary>> {
    let entries =
        std::fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))?;
    let mut runs: Vec<RunSummary> =
        entries.flatten().filter_map(|entry| read(&entry.path())).collect();
    runs.sort_by(|a, b| b.start.total_cmp(&a.start).then_with(|| b.path.cmp(&a.path)));
    Ok(runs)
}

/// The run in a folder; None if it is not a run folder.
pub fn read(path: &Path) -> Option<RunSummary> {
    let kind = kind(path)?;
    let (bytes, last_activity) = usage(path);
    let metrics = metrics(path);
    let summary = RunSummary {
        path: path.to_owned(),
        kind,
        state: RunState::Failed,
        start: start(path, last_activity),
        last_activity,
        step: metrics.step,
        steps: metrics.steps,
        loss: metrics.loss,
        val_loss: metrics.val_loss,
        bytes,
        is_link: path.is_symlink(),
    };
    Some(RunSummary { state: state(path, &summary), ..summary })
}

/// The kind of a run folder, by files that only regatta writes together.
pub fn kind(path: &Path) -> Option<RunKind> {
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
    is_launch.then(|| match subcommand(path).as_deref() {
        Some("train") => RunKind::Train,
        Some("bench") => RunKind::Bench,
        _ => RunKind::Launch,
    })
}

/// The subcommand of `regatta` that a launch ran, from its first event.
fn subcommand(path: &Path) -> Option<String> {
    let mut line = String::new();
    let events = regular_file::open(&path.join(EVENTS)).ok()?.take(TAIL_BYTES);
    BufReader::new(events).read_line(&mut line).ok()?;
    let event: Value = serde_json::from_str(&line).ok()?;
    let program = Path::new(event["command"][0].as_str()?).file_name()?;
    let subcommand = event["command"][1].as_str()?;
    (program == "regatta").then(|| subcommand.to_owned())
}

/// The folder of the last launch of a run: the run folder itself, or that of the last resumption. A
/// launch that was refused before its training started has no configuration and does not count.
pub fn last_launch(path: &Path) -> PathBuf {
    let relaunches = subfolders(&path.join(RELAUNCH)).into_iter();
    let started = relaunches.filter(|launch| launch.join(CONFIG).is_file());
    started.max().unwrap_or_else(|| path.to_owned())
}

/// The result of the last launch, if it ended.
pub fn result(path: &Path) -> Option<RunResult> {
    let file = last_launch(path).join(RESULT);
    let text = regular_file::read_to_string(&file, MAX_RESULT_BYTES).ok()?;
    document::from_json(&text).ok()
}

/// Files that processes of a running run have locked.
pub fn lock_files(path: &Path) -> Vec<PathBuf> {
    let mut files = [TRAIN_LOCK, BENCH_LOCK, EVENTS].map(|name| path.join(name)).to_vec();
    let relaunches = subfolders(&path.join(RELAUNCH));
    files.extend(relaunches.iter().map(|launch| launch.join(EVENTS)));
    if path.join(BENCH_LOCK).is_file() {
        files.extend(subfolders(path).iter().map(|child| child.join(EVENTS)));
    }
    files.retain(|file| file.is_file());
    files
}

fn state(path: &Path, run: &RunSummary) -> RunState {
    let locks: Vec<LockState> = lock_files(path).iter().map(|file| locks::state(file)).collect();
    let results: Vec<Option<RunResult>> = match path.join(BENCH_LOCK).is_file() {
        true => subfolders(path).iter().map(|child| result(child)).collect(),
        false => vec![result(path)],
    };
    let is_signalled = tail(&last_launch(path).join(EVENTS), TAIL_BYTES).iter().any(is_termination)
        || results.iter().flatten().any(RunResult::is_stopped_early);
    let ended = results.iter().all(Option::is_some);
    if locks.contains(&LockState::Held) || locks.contains(&LockState::Unsupported) && !ended {
        return RunState::Running;
    }
    let has_steps_left = matches!((run.step, run.steps), (Some(step), Some(steps)) if step < steps);
    let succeeded = results.iter().flatten().all(|result| result.exit_code == 0);
    // Ranks of a scheduler write no result.
    let is_complete = ended || run.kind == RunKind::Train && run.step.is_some() && !has_steps_left;
    match (is_complete && succeeded, is_signalled) {
        (_, true) => RunState::Stopped,
        (true, _) if has_steps_left => RunState::Stopped,
        (true, _) => RunState::Finished,
        (false, _) => RunState::Failed,
    }
}

/// Whether an event is a signal that ends the job.
fn is_termination(event: &Value) -> bool {
    let signal = event["signal"].as_i64().and_then(|signal| i32::try_from(signal).ok());
    event["event"] == "signal-received" && signal.is_some_and(is_termination_signal)
}

/// Start, in seconds since the Unix epoch: from the run ID that names the folder, else the creation
/// of the folder, where the file system records it.
fn start(path: &Path, last_activity: f64) -> f64 {
    let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let by_id = regatta_model::run_folder::run_id_time(id);
    let created = || std::fs::metadata(path).and_then(|found| found.created()).ok();
    by_id.or_else(created).map_or(last_activity, seconds)
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The last values of the metrics file.
#[derive(Debug, Default, PartialEq)]
struct LastMetrics {
    step: Option<u64>,
    steps: Option<u64>,
    loss: Option<f64>,
    val_loss: Option<f64>,
}

/// How far a training is, from the end of its metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub step: u64,
    pub steps: Option<u64>,
    pub loss: Option<f64>,
}

/// How far the training in a run folder is. Unlike [`read`], cheap: it reads the end of one file.
pub fn progress(path: &Path) -> Option<Progress> {
    let last = last_metrics(tail(&path.join(METRICS), TAIL_BYTES));
    Some(Progress { step: last.step?, steps: last.steps, loss: last.loss })
}

/// Reads more of the end of the file until it includes a validation, which may be many steps ago.
fn metrics(path: &Path) -> LastMetrics {
    let file = path.join(METRICS);
    let length = std::fs::metadata(&file).map_or(0, |found| found.len()).min(MAX_TAIL_BYTES);
    let mut bytes = TAIL_BYTES;
    loop {
        let last = last_metrics(tail(&file, bytes));
        if last.val_loss.is_some() || bytes >= length {
            return last;
        }
        bytes *= 8;
    }
}

fn last_metrics(lines: Vec<Value>) -> LastMetrics {
    let mut last = LastMetrics::default();
    for line in lines {
        last.step = line["step"].as_u64().or(last.step);
        last.steps = line["steps"].as_u64().or(last.steps);
        last.loss = line["loss"].as_f64().or(last.loss);
        last.val_loss = line["val_loss"].as_f64().or(last.val_loss);
    }
    last
}

/// The last complete lines of a file of JSON lines. Unreadable lines and files are skipped.
fn tail(path: &Path, bytes: u64) -> Vec<Value> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = regular_file::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut text = Vec::new();
        file.take(bytes).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Size on disk and last change of a folder. Links are not followed.
fn usage(path: &Path) -> (u64, f64) {
    let Ok(entries) = std::fs::read_dir(path) else { return (0, 0.0) };
    let mut total = (0, 0.0);
    for entry in entries.flatten() {
        let Ok(found) = entry.metadata() else { continue };
        let (bytes, time) = match found.is_dir() {
            true => usage(&entry.path()),
            false => (found.blocks() * 512, found.modified().map_or(0.0, seconds)),
        };
        total = (total.0 + bytes, f64::max(total.1, time));
    }
    total
}

fn subfolders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}
