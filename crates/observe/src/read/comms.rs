//! Event and status files of a job's communication: found in run folders, and read on all cores.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use regatta_events::file;
use regatta_events::status::{self, Status};
use regatta_model::run_folder::COMMS;

use super::ReadError;
use crate::analyse::comms::{Analysis, Collector, FileSummary};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// Arrivals at collectives that are kept in all files: 50 MB.
const MAX_ARRIVALS: usize = 1 << 20;
/// Arrivals that are kept in a file of a large job.
const MIN_ARRIVALS: usize = 64;

/// Most bytes of a status file that are read: its slots, of this version or a later one.
const MAX_STATUS: u64 = 4 * status::SLOT as u64;

/// The files with an extension in run folders and folders, and those that are named, in order.
pub fn find(paths: &[PathBuf], extension: &'static str) -> Result<Vec<PathBuf>, ReadError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            // Named files are not searched: a wrong name is an error when it is read.
            std::fs::metadata(path).map_err(ReadError::io(path))?;
            found.push(path.clone());
            continue;
        }
        let inner = path.join(COMMS);
        let folder = if inner.is_dir() { inner } else { path.clone() };
        let files = files_of(&folder, extension)?;
        if files.is_empty() {
            return Err(ReadError::NotRecorded { folder, extension });
        }
        found.extend(files);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The regular files in a folder with an extension.
pub fn files_of(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, ReadError> {
    let entries = std::fs::read_dir(folder).map_err(ReadError::io(folder))?;
    let is_wanted =
        |path: &PathBuf| path.extension().is_some_and(|found| found == extension) && path.is_file();
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_wanted).collect())
}

/// The status in a file. None: it has no complete one, or cannot be read.
pub fn read_status(path: &Path) -> Option<Status> {
    let mut bytes = Vec::with_capacity(2 * status::SLOT);
    File::open(path).ok()?.take(MAX_STATUS).read_to_end(&mut bytes).ok()?;
    status::decode(&bytes)
}

/// Reads all event files.
pub fn read_events(paths: &[PathBuf]) -> Analysis {
    let arrivals = (MAX_ARRIVALS / paths.len().max(1)).max(MIN_ARRIVALS);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicUsize::new(0);
    let analysis = Mutex::new(Analysis::default());
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let summary = read_file(path, arrivals);
            analysis.lock().unwrap_or_else(PoisonError::into_inner).add(summary);
        }
    };
    std::thread::scope(|scope| {
        // The last core is this thread.
        (1..cores.min(paths.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    analysis.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a file up to its end, its damage or an error.
fn read_file(path: &Path, arrivals: usize) -> FileSummary {
    let mut collector = Collector::new(path.display().to_string(), arrivals);
    let read = File::open(path).and_then(|input| {
        // Blocks of a quiet job are short.
        let input = BufReader::with_capacity(BUFFER, input);
        file::read(input, |record| collector.add(record))
    });
    collector.finish(read)
}
