//! Memory bandwidth in GB/s (10⁹ bytes/s): on the host, and between host and GPU.
//!
//! A copy counts its bytes once, as nccl-tests does; memory traffic is twice that. The triad
//! `a = b + s·c` counts all three arrays, as STREAM does. Sizes are those of one array, which the
//! threads share.

mod gpu;
mod host;

use std::sync::atomic::AtomicBool;

use regatta_model::{RateUnit, RooflineKind, units};

pub(super) use gpu::measure as measure_gpu;

use super::timing::Samples;
use super::{
    CaseProgress, Cases, Result, RooflineError, RooflineRow, TimingOptions, rank_threads,
    thread_counts,
};

/// Which bytes of a copy are counted.
const COUNTED_ONCE: &str = "a copy counts its bytes once";

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct CopySettings {
    /// Array sizes on the host in bytes.
    pub sizes: Vec<usize>,
    /// Copy sizes to, from and on a GPU in bytes.
    pub gpu_sizes: Vec<usize>,
    /// Threads of the rank; a single thread is measured as well.
    pub threads: usize,
    /// Whether to measure the first visible GPU, if any.
    pub gpu: bool,
    /// Repetitions.
    pub timing: TimingOptions,
}

impl Default for CopySettings {
    fn default() -> Self {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        Self {
            // From L1 to beyond the last-level cache of most machines.
            sizes: vec![16 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 256 * MIB],
            gpu_sizes: vec![MIB, 256 * MIB],
            threads: rank_threads(),
            gpu: true,
            timing: TimingOptions::default(),
        }
    }
}

impl CopySettings {
    fn check(&self) -> Result {
        let mut sizes = self.sizes.iter().chain(&self.gpu_sizes);
        let Some(size) = sizes.find(|size| **size < size_of::<f64>()) else { return Ok(()) };
        let message = format!("invalid copy size {size}: at least 8 bytes are required");
        Err(RooflineError::InvalidSetting { message })
    }
}

/// Measures copies on the host and between host and GPU. A missing or failing GPU is noted in the
/// first row. Once `stop` is set, returns the rows measured so far.
pub fn measure(
    settings: &CopySettings,
    stop: &AtomicBool,
    report: &mut dyn FnMut(CaseProgress<'_>),
) -> Result<Vec<RooflineRow>> {
    settings.check()?;
    let mut cases = Cases::new(stop, report);
    if cfg!(debug_assertions) {
        cases.notes.push("unoptimised build: the triad is slow".to_owned());
    }
    let device = settings.gpu.then(|| cases.device(super::gpu::open())).flatten();
    let counts = thread_counts(settings.threads);
    let of_gpu = device.as_ref().map_or(0, |_| gpu::CASES * settings.gpu_sizes.len());
    cases.total = host::CASES * counts.len() * settings.sizes.len() + of_gpu;
    host::measure(&mut cases, settings, &counts)?;
    if let Some(device) = device {
        let done = gpu::measure(&device, &mut cases, settings);
        cases.device(done.map(Some));
    }
    Ok(cases.into_rows())
}

/// The row of calls that copy `bytes` bytes.
fn row(timed: &Samples, what: String, bytes: usize) -> RooflineRow {
    timed.row(RooflineKind::Copy, what, bytes as f64 / 1e9, RateUnit::GigabytesPerSecond)
}

/// `copy 16 MiB`.
fn case_name(what: &str, bytes: usize) -> String {
    format!("{what} {}", units::format_bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_named_by_kernel_size_and_threads() {
        let settings = CopySettings {
            sizes: vec![1 << 10, 1 << 20],
            threads: 2,
            gpu: false,
            timing: TimingOptions::minimal(),
            ..CopySettings::default()
        };
        let rows = measure(&settings, &AtomicBool::new(false), &mut |_| ()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let cases = ["1 KiB, 1 thread", "1 KiB, 2 threads", "1 MiB, 1 thread", "1 MiB, 2 threads"];
        let kernels = |case| [format!("copy {case}"), format!("triad {case}")];
        assert_eq!(names, cases.map(kernels).concat());
        let notes = [&rows[4].notes[0], &rows[5].notes[0]];
        assert!(notes[0].contains("once") && notes[1].contains("three"), "{notes:?}");
        assert!(rows.iter().all(|row| row.best > 0.0 && row.unit.name() == "GB/s"));
    }

    #[test]
    fn bytes_per_nanosecond_are_gigabytes_per_second() {
        let timed = Samples::new(1000, vec![Duration::from_micros(1)]).unwrap();
        assert!((row(&timed, String::new(), 8).best - 8.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_below_one_element_are_rejected() {
        let settings = CopySettings { sizes: vec![4], ..CopySettings::default() };
        let found = measure(&settings, &AtomicBool::new(false), &mut |_| ());
        assert!(found.unwrap_err().to_string().contains("copy size 4"));
    }
}
