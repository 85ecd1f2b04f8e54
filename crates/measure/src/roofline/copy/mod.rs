//! Memory bandwidth in GB/s (10⁹ bytes/s): on the host, and between host and GPU.
//!
//! A copy counts its bytes once, as nccl-tests does; memory traffic is twice that. The triad
//! `a = b + s·c` counts all three arrays, as STREAM does. Sizes are those of one array, which the
//! threads share.

mod gpu;
mod host;

use regatta_model::{RateUnit, RooflineKind, units};

pub(super) use gpu::measure as measure_gpu;
pub(super) use host::copies;

use super::timing::Samples;
use super::{CaseProgress, Cases, Result, RooflineRow, RooflineSettings, thread_counts};

/// Which bytes of a copy are counted.
const COUNTED_ONCE: &str = "a copy counts its bytes once";

/// From L1 to beyond the last-level cache of most machines.
pub fn settings() -> RooflineSettings {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let sizes = [16 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 256 * MIB];
    RooflineSettings::of_sizes(&sizes, &[MIB, 256 * MIB])
}

/// Measures copies on the host and between host and GPU, of arrays of at least 8 bytes. A missing or
/// failing GPU is noted in the first row.
pub fn measure(
    settings: &RooflineSettings,
    report: &mut dyn FnMut(CaseProgress<'_>),
) -> Result<Vec<RooflineRow>> {
    let mut cases = Cases::new(report);
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
    use super::super::TimingOptions;
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_named_by_kernel_size_and_threads() {
        let (threads, gpu, timing) = (2, false, TimingOptions::minimal());
        let sizes = vec![1 << 10, 1 << 20];
        let settings = RooflineSettings { sizes, threads, gpu, timing, ..settings() };
        let rows = measure(&settings, &mut |_| ()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let cases = ["1 KiB, 1 thread", "1 KiB, 2 threads", "1 MiB, 1 thread", "1 MiB, 2 threads"];
        let kernels = |case| [format!("copy {case}"), format!("triad {case}")];
        assert_eq!(names, cases.map(kernels).concat());
        let notes = [&rows[4].notes[0], &rows[5].notes[0]];
        assert!(notes[0].contains("once") && notes[1].contains("three"), "{notes:?}");
        assert!(rows.iter().all(|row| row.best > 0.0 && row.unit == RateUnit::GigabytesPerSecond));
    }

    #[test]
    fn bytes_per_nanosecond_are_gigabytes_per_second() {
        let timed = Samples::new(1000, vec![Duration::from_micros(1)]);
        assert!((row(&timed, String::new(), 8).best - 8.0).abs() < 1e-9);
    }
}
