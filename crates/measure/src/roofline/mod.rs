//! Node roofline: what the cores, GPU, memory and file system of each rank can reach.
//!
//! [`gemm::measure`], [`copy::measure`] and [`disk::measure`] return the rows of this rank.
//! [`gather()`] collects them on rank 0, [`outliers::find`] identifies slow ranks, and [`text`]
//! prints them. All ranks should measure at the same time, after a barrier: contention between
//! ranks of a node is part of what each can reach.

pub mod copy;
pub mod disk;
pub mod gather;
pub mod gemm;
mod gpu;
pub mod node_rates;
pub mod outliers;
pub mod text;
mod threads;
mod timing;

use std::path::PathBuf;

pub use gather::gather;
pub use regatta_model::RooflineRow;
pub use timing::TimingOptions;

/// What [`gemm::measure`] and [`copy::measure`] measure.
#[derive(Debug, Clone, PartialEq)]
pub struct RooflineSettings {
    /// Matrix rows, or bytes of an array, on the CPU.
    pub sizes: Vec<usize>,
    /// Those on a GPU.
    pub gpu_sizes: Vec<usize>,
    /// Threads of the rank; a single thread is measured as well.
    pub threads: usize,
    /// Whether to measure the first visible GPU, if any.
    pub gpu: bool,
    /// Repetitions.
    pub timing: TimingOptions,
}

impl RooflineSettings {
    /// These sizes on all cores and the first GPU.
    fn of_sizes(sizes: &[usize], gpu_sizes: &[usize]) -> Self {
        Self {
            sizes: sizes.to_vec(),
            gpu_sizes: gpu_sizes.to_vec(),
            threads: rank_threads(),
            gpu: true,
            timing: TimingOptions::default(),
        }
    }
}

/// Progress of a measurement, reported when a case starts and when it ends.
///
/// Ranks with the same settings and GPUs have the same cases in the same order, so the callback may
/// synchronise them before each case.
#[derive(Debug, Clone, Copy)]
pub struct CaseProgress<'a> {
    /// Finished cases.
    pub done: usize,
    /// Total cases. A failing GPU skips some.
    pub total: usize,
    /// The case that starts or ended.
    pub name: &'a str,
}

/// A failed measurement.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RooflineError {
    /// Not enough disk space or quota.
    #[error(
        "not enough space in {}: {why}; free some, or choose another directory or a smaller size",
        dir.display()
    )]
    DiskFull { dir: PathBuf, why: String },
    /// A failed file or directory operation.
    #[error("cannot {doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// Threads cannot be started.
    #[error(
        "cannot start {threads} threads: {source}; raise the limit (ulimit -u), or bind the rank \
         to fewer CPUs"
    )]
    Threads { threads: usize, source: std::io::Error },
    /// A file without bytes has no bandwidth.
    #[error("invalid file size 0: at least 1 byte is required")]
    EmptyFile,
}

type Result<T = (), E = RooflineError> = std::result::Result<T, E>;

/// CPUs available to this rank, by affinity and cgroup quota.
pub fn rank_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A single thread, and one per CPU.
fn thread_counts(threads: usize) -> Vec<usize> {
    if threads > 1 { vec![1, threads] } else { vec![1] }
}

/// `1 thread`, `2 threads`.
fn threads_text(threads: usize) -> String {
    regatta_model::units::pluralize(threads, "thread")
}

/// Runs the cases of a measurement, reports progress and collects the rows.
struct Cases<'a> {
    total: usize,
    on_progress: &'a mut dyn FnMut(CaseProgress<'_>),
    rows: Vec<RooflineRow>,
    notes: Vec<String>,
}

impl<'a> Cases<'a> {
    fn new(on_progress: &'a mut dyn FnMut(CaseProgress<'_>)) -> Self {
        Self { total: 0, on_progress, rows: Vec::new(), notes: Vec::new() }
    }

    /// Measures one case.
    fn case<E>(
        &mut self,
        name: &str,
        measure: impl FnOnce() -> Result<RooflineRow, E>,
    ) -> Result<(), E> {
        let progress = CaseProgress { done: self.rows.len(), total: self.total, name };
        (self.on_progress)(progress);
        self.rows.push(measure()?);
        (self.on_progress)(CaseProgress { done: self.rows.len(), ..progress });
        Ok(())
    }

    /// The rows. Notes on the whole measurement go to the first.
    fn into_rows(mut self) -> Vec<RooflineRow> {
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
    fn progress_is_reported_at_the_start_and_end_of_each_case() {
        let mut reported = Vec::new();
        let mut on_progress = |p: CaseProgress<'_>| {
            reported.push((p.done, p.total, p.name.to_owned()));
        };
        let mut cases = Cases::new(&mut on_progress);
        cases.total = 3;
        for name in ["a", "b"] {
            let row = RooflineRow { case: name.to_owned(), ..RooflineRow::default() };
            cases.case(name, || Result::<_>::Ok(row)).unwrap();
        }
        cases.notes.push("no GPU".to_owned());
        let rows = cases.into_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].notes.len(), rows[0].notes[0].as_str()), (1, "no GPU"));
        let all = [(0, "a"), (1, "a"), (1, "b"), (2, "b")];
        assert_eq!(reported, all.map(|(done, name)| (done, 3, name.to_owned())));
    }

    #[test]
    fn a_single_thread_is_measured_once() {
        assert_eq!((thread_counts(1), thread_counts(0)), (vec![1], vec![1]));
        assert_eq!(thread_counts(8), [1, 8]);
    }
}
