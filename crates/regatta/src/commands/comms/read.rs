//! Reads event files on all cores.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use regatta_events::file;
use regatta_observe::comms::collector::FileEnd;
use regatta_observe::comms::{Analysis, Collector, FileSummary};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// Arrivals at collectives that are kept in all files: 50 MB.
const MAX_ARRIVALS: usize = 1 << 20;
/// Arrivals that are kept in a file of a large job.
const MIN_ARRIVALS: usize = 64;

/// Reads all files.
pub fn read_all(paths: &[PathBuf]) -> Analysis {
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
    collector.finish(match read {
        Ok(end) => end.into(),
        Err(error) => FileEnd::Unreadable { why: error.to_string() },
    })
}
