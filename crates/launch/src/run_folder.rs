//! The run folder: configuration, logs, events and result of a launch.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use regatta_model::run_folder::{
    ENVIRONMENT, EVENTS, LOG, MACHINE, PLACEMENT, Record, log_name, part_name,
};

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
        std::fs::create_dir_all(path.join(LOG)).map_err(&error)?;
        let events = OpenOptions::new().append(true).create_new(true).open(path.join(EVENTS));
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
        let logs = std::fs::read_dir(self.path.join(LOG)).into_iter().flatten().flatten();
        let empty = logs.filter(|log| log.metadata().is_ok_and(|m| m.len() == 0));
        let files = [EVENTS, MACHINE, PLACEMENT, ENVIRONMENT];
        let files = files.iter().map(|name| self.path.join(name));
        files.chain(empty.map(|log| log.path())).for_each(|f| drop(std::fs::remove_file(f)));
        let _ = std::fs::remove_dir(self.path.join(LOG));
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
        let part = self.path.join(part_name(name));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(text.as_bytes())?;
            then(&file)?;
            std::fs::rename(&part, &path)
        };
        write().map_err(RunFolderError::at(&path))
    }

    /// Appends a record to the events. Errors are ignored: a full disk must not end a run.
    pub fn append_event(&mut self, record: &Record) {
        let line = record.to_line();
        let _ = line.map(|line| self.events.write_all(line.as_bytes()));
    }

    /// The log folder.
    pub fn logs(&self) -> LogFolder {
        LogFolder { path: self.path.join(LOG) }
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
        let path = self.path.join(LOG).join(&name);
        let appended = open_log(&path).and_then(|mut file| file.write_all(bytes));
        let warning = log_truncated(&name, &appended.err()?);
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
        open_log(&path).map_err(RunFolderError::at(&path))
    }
}

/// Opens a log to append, and creates it with its folder if it does not exist: a rank's output and the
/// text of its messages are in the same log.
fn open_log(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().append(true).create(true).open(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    open().or_else(|_| std::fs::create_dir_all(folder).and_then(|()| open()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_locked_while_the_run_folder_is_open() {
        let name = format!("regatta-run-folder-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let folder = RunFolder::create(&path).unwrap();
        let is_free = || File::open(path.join(EVENTS)).unwrap().try_lock_shared().is_ok();
        assert!(!is_free());
        let RunFolder { events, .. } = folder;
        drop(events);
        assert!(is_free());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
