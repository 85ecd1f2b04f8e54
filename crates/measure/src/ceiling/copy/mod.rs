//! What copies of memory reach: GB/s (10⁹ bytes) on the host and between it and its GPU.
//!
//! Of a copy the bytes count once, as they do for nccl-tests: memory moves twice as many. Of the
//! triad `a = b + s·c` the bytes of all three arrays count, as STREAM has it. Sizes are those of
//! one array, shared by the threads.

mod gpu;
mod host;

use std::sync::atomic::AtomicBool;

use regatta_model::{CeilingKind, RateUnit, units};

use super::timing::Timed;
use super::{Cases, CeilingError, Effort, GpuChoice, Progress, Row, rank_threads, thread_counts};

/// Which bytes of a copy count.
const COUNTED: &str = "bytes copied, counted once";

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Bytes of an array on the host.
    pub sizes: Vec<usize>,
    /// Bytes of a copy on, to or from a GPU.
    pub gpu_sizes: Vec<usize>,
    /// Threads of the rank; one alone is measured, too.
    pub threads: usize,
    /// Which GPU.
    pub gpu: GpuChoice,
    /// How much to repeat.
    pub effort: Effort,
}

impl Default for Settings {
    fn default() -> Self {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        Self {
            // From the nearest cache to beyond the last one of most machines.
            sizes: vec![16 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 256 * MIB],
            gpu_sizes: vec![MIB, 256 * MIB],
            threads: rank_threads(),
            gpu: GpuChoice::default(),
            effort: Effort::default(),
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), CeilingError> {
        let sizes = self.sizes.iter().chain(&self.gpu_sizes);
        match sizes.min().filter(|size| **size < size_of::<f64>()) {
            Some(size) => Err(CeilingError::Setting {
                what: format!("a copy of {size} bytes says nothing: choose 8 or more"),
            }),
            None => Ok(()),
        }
    }
}

/// Measures copies on the host, and between it and its GPU. Without one, and when it fails, the
/// first row has a note that says so. Once `stop` is set it returns what it has.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, CeilingError> {
    settings.check()?;
    let mut cases = Cases::new(stop, report);
    if cfg!(debug_assertions) {
        cases.notes.push("built without optimisation, so the triad is slow".to_owned());
    }
    let device = cases.device(super::gpu::open(settings.gpu));
    let counts = thread_counts(settings.threads);
    let of_gpu = device.as_ref().map_or(0, |_| gpu::WAYS * settings.gpu_sizes.len());
    cases.total = host::WAYS * counts.len() * settings.sizes.len() + of_gpu;
    host::measure(&mut cases, settings, &counts)?;
    if let Some(device) = device {
        let done = gpu::measure(&device, &mut cases, settings);
        cases.device(done.map(Some));
    }
    Ok(cases.finish())
}

/// The row of calls that move so many bytes.
fn row(timed: &Timed, what: String, bytes: usize) -> Row {
    timed.row(CeilingKind::Copy, what, bytes as f64 / 1e9, RateUnit::GigabytesPerSecond)
}

/// `copy 16 MiB`.
fn sized(what: &str, bytes: usize) -> String {
    format!("{what} {}", units::bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_say_what_was_measured() {
        let settings = Settings {
            sizes: vec![1 << 10, 1 << 20],
            threads: 2,
            gpu: GpuChoice::None,
            effort: Effort { repetitions: 2, repetition: Duration::ZERO, case: Duration::ZERO },
            ..Settings::default()
        };
        let rows = measure(&settings, &AtomicBool::new(false), &mut |_| ()).unwrap();
        let whats: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        let expected = [
            "copy 1 KiB, 1 thread",
            "triad 1 KiB, 1 thread",
            "copy 1 KiB, 2 threads",
            "triad 1 KiB, 2 threads",
            "copy 1 MiB, 1 thread",
            "triad 1 MiB, 1 thread",
            "copy 1 MiB, 2 threads",
            "triad 1 MiB, 2 threads",
        ];
        assert_eq!(whats, expected);
        let notes = [&rows[4].notes[0], &rows[5].notes[0]];
        assert!(notes[0].contains("once") && notes[1].contains("three"), "{notes:?}");
        assert!(rows.iter().all(|row| row.best > 0.0 && row.unit.name() == "GB/s"));
    }

    #[test]
    fn bytes_a_nanosecond_are_gigabytes_a_second() {
        let timed = Timed::new(1000, vec![Duration::from_micros(1)]).unwrap();
        assert!((row(&timed, String::new(), 8).best - 8.0).abs() < 1e-9);
    }

    #[test]
    fn a_size_that_says_nothing_is_refused() {
        let settings = Settings { sizes: vec![4], ..Settings::default() };
        let found = measure(&settings, &AtomicBool::new(false), &mut |_| ());
        assert!(found.unwrap_err().to_string().contains("4 bytes"));
    }
}
