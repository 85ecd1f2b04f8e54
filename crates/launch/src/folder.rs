//! The run folder: what a launch was and how it ended, for the stages after it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

/// The variable that tells ranks where the folder is.
pub const VARIABLE: &str = "REGATTA_RUN_DIR";

/// Why the run folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("run folder {path}: {source}; choose another with --run-dir")]
pub struct FolderError {
    path: String,
    source: io::Error,
}

/// A run's folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    events: File,
    /// Logs that could not be written to, which was said.
    cut: HashSet<String>,
}

impl RunFolder {
    /// Makes the folder. One that holds a run already is refused: nothing is overwritten.
    pub fn create(path: &Path) -> Result<Self, FolderError> {
        let wrap = |source| FolderError { path: path.display().to_string(), source };
        std::fs::create_dir_all(path.join("log")).map_err(wrap)?;
        let events =
            OpenOptions::new().append(true).create_new(true).open(path.join("events.jsonl"));
        Ok(Self { path: path.to_owned(), events: events.map_err(wrap)?, cut: HashSet::new() })
    }

    /// Takes back a folder in which nothing ran, so that its name can be used again. What has
    /// something to tell stays, and the folder with it.
    pub fn abandon(self) {
        let logs = std::fs::read_dir(self.path.join("log")).into_iter().flatten().flatten();
        let empty = logs.filter(|log| log.metadata().is_ok_and(|m| m.len() == 0));
        let files = ["events.jsonl", "machine.json", "placement.json", "environment.json"];
        let files = files.iter().map(|name| self.path.join(name));
        files.chain(empty.map(|log| log.path())).for_each(|f| drop(std::fs::remove_file(f)));
        let _ = std::fs::remove_dir(self.path.join("log"));
        let _ = std::fs::remove_dir(&self.path);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of it, whole or not at all.
    pub fn write(&self, name: &str, text: &str) -> Result<(), FolderError> {
        self.write_then(name, text, |_| Ok(()))
    }

    /// The same, and waits until it is on the disk: it is there also after a crash of the machine.
    pub fn write_safely(&self, name: &str, text: &str) -> Result<(), FolderError> {
        self.write_then(name, text, File::sync_all)
    }

    fn write_then(
        &self,
        name: &str,
        text: &str,
        then: impl Fn(&File) -> io::Result<()>,
    ) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let part = self.path.join(format!("{name}.part"));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(text.as_bytes())?;
            then(&file)?;
            std::fs::rename(&part, &path)
        };
        write().map_err(|source| FolderError { path: path.display().to_string(), source })
    }

    /// Adds an event, one JSON line. A full disk must not end a run, so it is not an error.
    pub fn event(&mut self, event: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_string(event) {
            line.push('\n');
            let _ = self.events.write_all(line.as_bytes());
        }
    }

    /// Where the ranks' logs go.
    pub fn logs(&self) -> LogFolder {
        LogFolder { path: self.path.join("log") }
    }
}

impl RunFolder {
    /// Adds to the log of a rank on a node that does not see this folder. What to tell the user if
    /// that fails, once for each log: a full disk must not end a run.
    pub fn append_log(
        &mut self,
        attempt: u32,
        rank: u32,
        error: bool,
        bytes: &[u8],
    ) -> Option<String> {
        let name = log_name(attempt, rank, error);
        let path = self.path.join("log").join(&name);
        let append = || -> io::Result<()> {
            let open = || OpenOptions::new().append(true).create(true).open(&path);
            let mut file = open().or_else(|_| {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.path))?;
                open()
            })?;
            file.write_all(bytes)
        };
        let why = append().err()?;
        let what = format!("the log {name} misses what the rank wrote: {why}");
        self.cut.insert(name).then_some(what)
    }
}

/// Where ranks' logs go.
#[derive(Debug, Clone)]
pub struct LogFolder {
    path: PathBuf,
}

impl LogFolder {
    /// The folder at a path.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new log file for one stream of a rank. Each start anew has a folder of its own.
    pub fn file(&self, attempt: u32, rank: u32, error: bool) -> Result<File, FolderError> {
        let path = self.path.join(log_name(attempt, rank, error));
        let folder = path.parent().unwrap_or(&self.path);
        let create = || File::create(&path);
        create()
            .or_else(|_| std::fs::create_dir_all(folder).and_then(|()| create()))
            .map_err(|source| FolderError { path: path.display().to_string(), source })
    }
}

/// The name of a log in the folder of logs: `rank-0.out`, `restart-1/rank-0.err`.
pub fn log_name(attempt: u32, rank: u32, error: bool) -> String {
    let stream = if error { "err" } else { "out" };
    match attempt {
        0 => format!("rank-{rank}.{stream}"),
        n => format!("restart-{n}/rank-{rank}.{stream}"),
    }
}

/// A name for a run: its time in UTC and the process, `20261115-051200-4711`.
pub fn run_id(now: SystemTime, pid: u32) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil(since / 86_400);
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}-{pid}")
}

/// The date of a day counted from 1970-01-01. Years are counted from March, so that the leap day
/// is the last of the year.
fn civil(days: u64) -> (u64, u64, u64) {
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
    fn dates() {
        let at = |secs: u64| run_id(SystemTime::UNIX_EPOCH + Duration::from_secs(secs), 7);
        assert_eq!(at(0), "19700101-000000-7");
        assert_eq!(at(951_782_400), "20000229-000000-7");
        assert_eq!(at(1_794_719_520), "20261115-051200-7");
    }
}
