//! An open run folder: its launches, their documents, attempts and files.

use std::path::{Path, PathBuf};

use regatta_model::result::RunResult;
use regatta_model::run_folder::{
    BENCH_LOCK, COMMS, CONFIG, ENVIRONMENT, EVENTS, JobEnvironment, LOG, PLACEMENT, RELAUNCH,
    RESULT, RunKind, log_name, machine_name, parse_attempt_folder, parse_log_name,
};
use regatta_model::{Machine, Placement};

use super::ReadError;
use super::file::{read_document, read_text};
use super::follow::RunFollower;
use super::summary;

/// A run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    path: PathBuf,
    kind: RunKind,
}

impl Run {
    /// Opens the run in a folder.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let kind = summary::kind(path).ok_or_else(|| ReadError::NotARun(path.to_owned()))?;
        Ok(Self { path: path.to_owned(), kind })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the run does.
    pub fn kind(&self) -> RunKind {
        self.kind
    }

    /// The launches of the run, oldest first: the first one, and those that resumed it. A sweep or scan
    /// has one per setting or node count.
    pub fn launches(&self) -> Vec<Launch> {
        launches(&self.path)
    }

    /// The last launch.
    pub fn last_launch(&self) -> Launch {
        last_launch(&self.path)
    }

    /// Follows the events and metrics of the run from its start.
    pub fn follow(&self) -> RunFollower {
        RunFollower::new(self.clone())
    }
}

/// All launches of a run folder, oldest first: the folders of later ones are named by their time, and those
/// of a sweep or scan begin with an increasing number.
pub(super) fn launches(path: &Path) -> Vec<Launch> {
    let has_events = |path: &PathBuf| path.join(EVENTS).is_file();
    let is_sweep = path.join(BENCH_LOCK).is_file();
    let mut paths = subfolders(&if is_sweep { path.to_owned() } else { path.join(RELAUNCH) });
    paths.retain(|path| !is_sweep || has_events(path));
    // The folder of a sweep may be used for another launch, too.
    paths.extend(Some(path.to_owned()).filter(|path| !is_sweep || has_events(path)));
    // The length of the number: 10 is after 9.
    let digits = |name: &str| name.bytes().take_while(u8::is_ascii_digit).count();
    paths.sort_by_cached_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (path.components().count(), digits(&name), name)
    });
    paths.into_iter().map(|path| Launch { path }).collect()
}

/// The last launch in a run folder. One that was refused before its training started has no configuration
/// and does not count.
pub fn last_launch(path: &Path) -> Launch {
    let is_first = |launch: &Launch| launch.path == path;
    let started = |launch: &Launch| is_first(launch) || launch.path.join(CONFIG).is_file();
    let launch = launches(path).into_iter().rfind(started);
    launch.unwrap_or_else(|| Launch { path: path.to_owned() })
}

/// The folders in a folder. Links are not followed.
pub(super) fn subfolders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// The log of one stream of a rank in an attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Log {
    /// The attempt.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// Standard error, not standard output.
    pub stderr: bool,
    /// Path of the file.
    pub path: PathBuf,
}

/// The folder of one launch of a run. Documents that are not written (yet) are None.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub(super) path: PathBuf,
}

impl Launch {
    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hardware of the nodes: of the first one, and of others where they differ.
    pub fn machines(&self) -> Result<Vec<Machine>, ReadError> {
        let read = |index| read_document(&self.path.join(machine_name(index))).transpose();
        (0..).map_while(read).collect()
    }

    /// The placement of the ranks.
    pub fn placement(&self) -> Result<Option<Placement>, ReadError> {
        read_document(&self.path.join(PLACEMENT))
    }

    /// The variables of the ranks.
    pub fn environment(&self) -> Result<Option<JobEnvironment>, ReadError> {
        read_document(&self.path.join(ENVIRONMENT))
    }

    /// The configuration of a training, as TOML.
    pub fn config(&self) -> Result<Option<String>, ReadError> {
        read_text(&self.path.join(CONFIG))
    }

    /// The outcome of the last attempt that ended. The launch may go on: see [`Run::state`].
    pub fn result(&self) -> Result<Option<RunResult>, ReadError> {
        read_document(&self.path.join(RESULT))
    }

    /// The logs, by attempt, rank and stream.
    pub fn logs(&self) -> Vec<Log> {
        let folder = self.path.join(LOG);
        let mut found = logs_of(&folder, 0);
        for restart in subfolders(&folder) {
            let attempt = restart.file_name().and_then(|name| parse_attempt_folder(name.to_str()?));
            found.extend(attempt.map(|attempt| logs_of(&restart, attempt)).unwrap_or_default());
        }
        found.sort();
        found
    }

    /// Path of a log, which may not exist.
    pub fn log(&self, attempt: u32, rank: u32, stderr: bool) -> PathBuf {
        self.path.join(LOG).join(log_name(attempt, rank, stderr))
    }

    /// Folder of the event and status files of `--profile`, which may not exist.
    pub fn comms(&self) -> PathBuf {
        self.path.join(COMMS)
    }
}

fn logs_of(folder: &Path, attempt: u32) -> Vec<Log> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let log = |entry: std::fs::DirEntry| {
        let (rank, stderr) = parse_log_name(entry.file_name().to_str()?)?;
        Some(Log { attempt, rank, stderr, path: entry.path() })
    };
    entries.filter_map(log).collect()
}
