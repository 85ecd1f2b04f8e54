//! The run folder: configuration, logs, events and result of a launch.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

/// Environment variable with the path of the run folder.
pub const VARIABLE: &str = "REGATTA_RUN_DIR";

/// The run folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RunFolderError {
    /// The folder already contains a run.
    #[error("run folder {0} already contains a run; choose another with --run-dir")]
    Exists(String),
    /// A file or folder cannot be created.
    #[error("run folder {path}: {source}{}", match file_size_hint(source) {
        "" => "; choose another with --run-dir",
        hint => hint,
    })]
    Io { path: String, source: io::Error },
}

impl RunFolderError {
    fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Io { path: path.clone(), source }
    }
}

/// A run folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    events: File,
    /// Incomplete logs that have been reported.
    truncated: HashSet<String>,
}

impl RunFolder {
    /// Creates the folder. Fails if it already holds a run: nothing is overwritten.
    pub fn create(path: &Path) -> Result<Self, RunFolderError> {
        let error = RunFolderError::at(path);
        std::fs::create_dir_all(path.join("log")).map_err(&error)?;
        let events =
            OpenOptions::new().append(true).create_new(true).open(path.join("events.jsonl"));
        let events = events.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => RunFolderError::Exists(path.display().to_string()),
            _ => error(source),
        })?;
        // Shows that the run is in progress until this process ends, however it ends. File systems
        // without locks are fine.
        let _ = events.try_lock();
        Ok(Self { path: path.to_owned(), events, truncated: HashSet::new() })
    }

    /// Removes a folder in which nothing ran, so that its name can be reused. Non-empty logs are
    /// kept, and the folder with them.
    pub fn discard(self) {
        let logs = std::fs::read_dir(self.path.join("log")).into_iter().flatten().flatten();
        let empty = logs.filter(|log| log.metadata().is_ok_and(|m| m.len() == 0));
        let files = ["events.jsonl", "machine.json", "placement.json", "environment.json"];
        let files = files.iter().map(|name| self.path.join(name));
        files.chain(empty.map(|log| log.path())).for_each(|f| drop(std::fs::remove_file(f)));
        let _ = std::fs::remove_dir(self.path.join("log"));
        let _ = std::fs::remove_dir(&self.path);
    }

    /// Removes a file in a subfolder, and the subfolder if it is empty then.
    pub fn remove(&self, folder: &str, name: &str) {
        let folder = self.path.join(folder);
        let _ = std::fs::remove_file(folder.join(name));
        let _ = std::fs::remove_dir(folder);
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file atomically.
    pub fn write(&self, name: &str, text: &str) -> Result<(), RunFolderError> {
        self.write_then(name, text, |_| Ok(()))
    }

    /// Writes a file atomically and durably: it is synced to disk before it is renamed.
    pub fn write_durable(&self, name: &str, text: &str) -> Result<(), RunFolderError> {
        self.write_then(name, text, File::sync_all)
    }

    fn write_then(
        &self,
        name: &str,
        text: &str,
        then: impl Fn(&File) -> io::Result<()>,
    ) -> Result<(), RunFolderError> {
        let path = self.path.join(name);
        let part = self.path.join(format!("{name}.part"));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(text.as_bytes())?;
            then(&file)?;
            std::fs::rename(&part, &path)
        };
        write().map_err(RunFolderError::at(&path))
    }

    /// Appends an event as a JSON line. Errors are ignored: a full disk must not end a run.
    pub fn append_event(&mut self, event: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_string(event) {
            line.push('\n');
            let _ = self.events.write_all(line.as_bytes());
        }
    }

    /// The log folder.
    pub fn logs(&self) -> LogFolder {
        LogFolder { path: self.path.join("log") }
    }

    /// Appends to the log of a rank: its output if its node does not see this folder, and the text of
    /// its messages. Returns a warning for the user on the first failure of each log: a full disk must
    /// not end a run.
    pub fn append_log(
        &mut self,
        attempt: u32,
        rank: u32,
        stderr: bool,
        bytes: &[u8],
    ) -> Option<String> {
        let name = log_name(attempt, rank, stderr);
        let path = self.path.join("log").join(&name);
        let append = || -> io::Result<()> {
            let open = || OpenOptions::new().append(true).create(true).open(&path);
            let mut file = open().or_else(|_| {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.path))?;
                open()
            })?;
            file.write_all(bytes)
        };
        let warning = log_truncated(&name, &append().err()?);
        self.truncated.insert(name).then_some(warning)
    }
}

/// The folder of the ranks' logs.
#[derive(Debug, Clone)]
pub struct LogFolder {
    path: PathBuf,
}

impl LogFolder {
    /// The folder at a path.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the log file of one stream of a rank. Each restart has a subfolder.
    pub fn create(&self, attempt: u32, rank: u32, stderr: bool) -> Result<File, RunFolderError> {
        let path = self.path.join(log_name(attempt, rank, stderr));
        let folder = path.parent().unwrap_or(&self.path);
        // To append: the text of a rank's messages is appended to the same log.
        let open = || OpenOptions::new().append(true).create(true).open(&path);
        let file = open().or_else(|_| std::fs::create_dir_all(folder).and_then(|()| open()));
        file.map_err(RunFolderError::at(&path))
    }
}

/// Path of a log within the log folder: `rank-0.out`, `restart-1/rank-0.err`.
pub fn log_name(attempt: u32, rank: u32, stderr: bool) -> String {
    let stream = if stderr { "err" } else { "out" };
    let name = format!("rank-{rank}.{stream}");
    attempt_folder(attempt).map_or(name.clone(), |folder| format!("{folder}/{name}"))
}

/// Folder of a restart within the log folder, `restart-1`; the first attempt has none.
pub fn attempt_folder(attempt: u32) -> Option<String> {
    (attempt > 0).then(|| format!("restart-{attempt}"))
}

/// Warning about an incomplete log.
pub(crate) fn log_truncated(name: &str, error: &io::Error) -> String {
    format!("log {name} is incomplete: {error}{}", file_size_hint(error))
}

/// The fix for a write beyond the file size limit, to be appended to the error.
pub fn file_size_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "; raise the limit with `ulimit -f unlimited`",
        _ => "",
    }
}

/// ID of a run: time in UTC and process ID, `20261115-051200-4711`.
pub fn run_id(now: SystemTime, pid: u32) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil_date(since / 86_400);
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}-{pid}")
}

/// The date in UTC: `2026-11-15`.
pub fn utc_date(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil_date(since / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time in a run ID; None if the text is not one.
pub fn run_id_time(id: &str) -> Option<SystemTime> {
    let number =
        |range| id.get(range).filter(|text: &&str| text.bytes().all(|b| b.is_ascii_digit()));
    let parts = [0..4, 4..6, 6..8, 9..11, 11..13, 13..15].map(|range| number(range)?.parse().ok());
    let [Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second)] = parts else {
        return None;
    };
    // Search by year, because the inverse of `civil_date` is only needed here.
    let first = (1970..=9999).contains(&year).then(|| (year - 1970) * 365)?;
    let last = first + (year - 1970) / 4 + 366;
    let days = (first..=last).find(|days| civil_date(*days) == (year, month, day))?;
    let since: u64 = days * 86_400 + hour * 3600 + minute * 60 + second;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))?;
    // Hours, minutes and separators, too, must be valid.
    let process = id.get(16..).and_then(|process| process.parse().ok())?;
    (run_id(time, process) == id).then_some(time)
}

/// Converts days since 1970-01-01 to year, month and day. Years begin in March, so that the leap
/// day is the last day.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_formats_the_utc_date() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199);
        assert_eq!(utc_date(late), "2024-02-29");
        let at = |secs: u64| run_id(SystemTime::UNIX_EPOCH + Duration::from_secs(secs), 7);
        assert_eq!(at(0), "19700101-000000-7");
        assert_eq!(at(951_782_400), "20000229-000000-7");
        assert_eq!(at(1_794_719_520), "20261115-051200-7");
    }

    #[test]
    fn run_id_time_is_the_inverse_of_run_id() {
        for seconds in [0, 951_782_400, 1_794_719_520, 4_102_444_799, 1_735_689_599] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(run_id_time(&run_id(time, 7)), Some(time), "{seconds}");
        }
        for other in [
            "",
            "mine",
            "20261115-051200",
            "20261115-256000-7",
            "20261315-051200-7",
            "20261115_051200-7",
        ] {
            assert_eq!(run_id_time(other), None, "{other}");
        }
    }

    #[test]
    fn events_are_locked_while_the_run_folder_is_open() {
        let path = std::env::temp_dir().join(run_id(SystemTime::now(), std::process::id()));
        let folder = RunFolder::create(&path).unwrap();
        let is_free = || File::open(path.join("events.jsonl")).unwrap().try_lock_shared().is_ok();
        assert!(!is_free());
        let RunFolder { events, .. } = folder;
        drop(events);
        assert!(is_free());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
