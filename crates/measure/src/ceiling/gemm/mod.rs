//! What products of matrices reach: FLOP/s on this rank's cores and on its GPU.
//!
//! A product of two square matrices of `n` rows counts as 2·n·n·n operations, a multiplication and
//! an addition for each element of a row and a column. On the CPU the product is cut into a tile a
//! thread.

mod cpu;
mod gpu;

use std::sync::atomic::AtomicBool;

use regatta_model::{CeilingKind, RateUnit};

use super::timing::Timed;
use super::{Cases, CeilingError, Effort, GpuChoice, Progress, Row, rank_threads, thread_counts};

/// Rows of a matrix, at most: more is gigabytes, and no BLAS takes sizes beyond 31 bits.
const LARGEST: usize = 1 << 16;

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Rows of the matrices on the CPU.
    pub sizes: Vec<usize>,
    /// Rows of the matrices on a GPU.
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
        Self {
            sizes: vec![512, 1024, 2048],
            gpu_sizes: vec![2048, 4096, 8192],
            threads: rank_threads(),
            gpu: GpuChoice::default(),
            effort: Effort::default(),
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), CeilingError> {
        let odd = |size: &&usize| !(1..=LARGEST).contains(*size);
        match self.sizes.iter().chain(&self.gpu_sizes).find(odd) {
            Some(size) => Err(CeilingError::Setting {
                what: format!("a matrix cannot have {size} rows: choose 1 to {LARGEST}"),
            }),
            None => Ok(()),
        }
    }
}

/// Measures products on this rank's cores and its GPU. Without one, and when it fails, the first
/// row has a note that says so. Once `stop` is set it returns what it has.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, CeilingError> {
    settings.check()?;
    let mut cases = Cases::new(stop, report);
    let device = cases.device(super::gpu::open(settings.gpu));
    let device = device.and_then(|device| cases.device(gpu::Products::open(device).map(Some)));
    let counts = thread_counts(settings.threads);
    let of_gpu = device.as_ref().map_or(0, |device| device.cases(settings));
    cases.total = 2 * counts.len() * settings.sizes.len() + of_gpu;
    cpu::measure::<f32>(&mut cases, settings, &counts)?;
    cpu::measure::<f64>(&mut cases, settings, &counts)?;
    if let Some(device) = device {
        let done = device.measure(&mut cases, settings);
        cases.device(done.map(Some));
    }
    Ok(cases.finish())
}

/// The row of products of two matrices of `size` rows.
fn row(timed: &Timed, what: String, size: usize) -> Row {
    let gflop = 2.0 * (size as f64).powi(3) / 1e9;
    timed.row(CeilingKind::Gemm, what, gflop, RateUnit::Gflops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// As little as can be measured.
    fn quick() -> Effort {
        Effort { repetitions: 2, repetition: Duration::ZERO, case: Duration::ZERO }
    }

    #[test]
    fn rows_say_what_was_measured() {
        let settings = Settings {
            sizes: vec![5, 16],
            threads: 3,
            gpu: GpuChoice::None,
            effort: quick(),
            ..Settings::default()
        };
        let mut totals = Vec::new();
        let mut report = |progress: Progress<'_>| totals.push((progress.done, progress.total));
        let rows = measure(&settings, &AtomicBool::new(false), &mut report).unwrap();
        let whats: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        let expected = [
            "f32 5, 1 thread",
            "f32 5, 3 threads",
            "f32 16, 1 thread",
            "f32 16, 3 threads",
            "f64 5, 1 thread",
            "f64 5, 3 threads",
            "f64 16, 1 thread",
            "f64 16, 3 threads",
        ];
        assert_eq!(whats, expected);
        assert_eq!((totals.first(), totals.last()), (Some(&(0, 8)), Some(&(8, 8))));
        for row in &rows {
            assert!(row.median > 0.0 && row.best >= row.median && row.repetitions == 2, "{row:?}");
            assert_eq!((row.device.as_str(), row.unit), ("cpu", RateUnit::Gflops));
        }
        assert!(rows[0].notes.is_empty(), "nobody asked for a GPU");
    }

    #[test]
    fn operations_are_two_for_each_step() {
        let timed = Timed::new(4, vec![Duration::from_secs(2)]).unwrap();
        assert!((row(&timed, String::new(), 1000).best - 4.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for size in [0, LARGEST + 1] {
            let settings = Settings { sizes: vec![512, size], ..Settings::default() };
            let found = measure(&settings, &AtomicBool::new(false), &mut |_| ());
            assert!(found.unwrap_err().to_string().contains(&size.to_string()));
        }
    }
}
