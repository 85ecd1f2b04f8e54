//! Ceilings: what the devices, memory and file system of each rank can do.
//!
//! [`gemm::measure`], [`copy::measure`] and [`disk::measure`] each return this rank's rows.
//! [`gather()`] brings the rows of all ranks to rank 0, [`judge`](judge::judge) says who stands out,
//! and [`text`] shows it. All ranks should measure at once, after a barrier: what the ranks of a
//! node take from each other is part of what each can do.

pub mod copy;
pub mod disk;
pub mod gather;
pub mod gemm;
mod gpu;
pub mod judge;
pub mod text;
mod timing;
mod together;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

pub use gather::{ceilings, gather};
pub use regatta_model::CeilingRow as Row;
pub use timing::Effort;

/// How far a measurement is. It is told when a case begins, and again, with its row, when it ended.
///
/// Ranks with the same settings and GPUs have the same cases in the same order, so whoever is told
/// may wait for the other ranks there, to have each case begin on all at once.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Cases that are done.
    pub done: usize,
    /// Cases in all. A GPU that fails leaves some of them out.
    pub total: usize,
    /// The case that begins or ended.
    pub what: &'a str,
    /// What came of it, if it ended.
    pub row: Option<&'a Row>,
}

/// Which GPU to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// None.
    None,
    /// The first one that the rank sees, if there is one.
    #[default]
    First,
    /// This one, as the rank counts those that it sees.
    Number(u32),
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// There is no room for what is to be written.
    #[error(
        "no room in {}: {why}; free some, or choose another folder or a smaller size",
        folder.display()
    )]
    Full {
        /// The folder.
        folder: PathBuf,
        /// What the system said, or what is missing.
        why: String,
    },
    /// A file or folder cannot be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was to be done with it.
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Threads cannot be started.
    #[error(
        "cannot start {threads} threads: {source}; raise the limit (ulimit -u), or bind the rank \
         to fewer CPUs"
    )]
    Threads {
        /// How many there should be.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A setting makes no sense.
    #[error("{what}")]
    Setting {
        /// What is wrong with it.
        what: String,
    },
}

/// How many threads this rank has CPUs for: by its affinity, and no more than its cgroup allows.
pub fn rank_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One thread, and as many as there are CPUs.
fn thread_counts(threads: usize) -> Vec<usize> {
    if threads > 1 { vec![1, threads] } else { vec![1] }
}

/// `1 thread`, `2 threads`.
fn threads_text(threads: usize) -> String {
    regatta_model::units::count(threads, "thread")
}

/// The cases of a measurement: tells of each, and keeps the rows.
struct Cases<'a> {
    total: usize,
    done: usize,
    stop: &'a AtomicBool,
    report: &'a mut dyn FnMut(Progress<'_>),
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl<'a> Cases<'a> {
    fn new(stop: &'a AtomicBool, report: &'a mut dyn FnMut(Progress<'_>)) -> Self {
        Self { total: 0, done: 0, stop, report, rows: Vec::new(), notes: Vec::new() }
    }

    /// Measures one, unless it was said to stop. `None` is one that was stopped amid.
    fn case<E>(
        &mut self,
        what: &str,
        measure: impl FnOnce(&AtomicBool) -> Result<Option<Row>, E>,
    ) -> Result<(), E> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        (self.report)(Progress { done: self.done, total: self.total, what, row: None });
        let Some(row) = measure(self.stop)? else { return Ok(()) };
        self.done += 1;
        (self.report)(Progress { done: self.done, total: self.total, what, row: Some(&row) });
        self.rows.push(row);
        Ok(())
    }

    /// The rows. What there is to say of the measurement as a whole is noted at the first.
    fn finish(mut self) -> Vec<Row> {
        if let Some(first) = self.rows.first_mut() {
            first.notes.append(&mut self.notes);
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_told_when_they_begin_and_end() {
        let stop = AtomicBool::new(false);
        let mut told = Vec::new();
        let mut report = |p: Progress<'_>| {
            told.push((p.done, p.total, p.what.to_owned(), p.row.is_some()));
        };
        let mut cases = Cases::new(&stop, &mut report);
        cases.total = 3;
        for what in ["a", "b", "c"] {
            let measured = cases.case(what, |stop| {
                stop.store(what == "b", Ordering::Relaxed);
                Ok::<_, CeilingError>(Some(Row { what: what.to_owned(), ..Row::default() }))
            });
            measured.unwrap();
        }
        cases.notes.push("no GPU".to_owned());
        let rows = cases.finish();
        assert_eq!(rows.len(), 2, "what was said to stop goes on");
        assert_eq!((rows[0].notes.len(), rows[0].notes[0].as_str()), (1, "no GPU"));
        let word = |what: &str| what.to_owned();
        let all = [(0, "a", false), (1, "a", true), (1, "b", false), (2, "b", true)];
        assert_eq!(told, all.map(|(done, what, row)| (done, 3, word(what), row)));
    }

    #[test]
    fn one_thread_is_measured_once() {
        assert_eq!((thread_counts(1), thread_counts(0)), (vec![1], vec![1]));
        assert_eq!(thread_counts(8), [1, 8]);
    }
}
