//! GEMM throughput in FLOP/s on this rank's cores and GPU.
//!
//! A product of two n × n matrices counts as 2n³ operations. On the CPU each thread computes one
//! tile.

mod cpu;
mod gpu;

use std::sync::atomic::AtomicBool;

use regatta_model::{RateUnit, RooflineKind};

use super::gpu::{GemmType, GpuResult, RooflineGpu};
use super::threads::ThreadKernel;
use super::timing::Samples;
use super::{
    CaseProgress, Cases, Result, RooflineError, RooflineRow, TimingOptions, rank_threads,
    thread_counts,
};

/// Maximum matrix rows: larger ones take many GB, and BLAS dimensions are 31-bit.
const MAX_ROWS: usize = 1 << 16;

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmSettings {
    /// Matrix rows on the CPU.
    pub sizes: Vec<usize>,
    /// Matrix rows on a GPU.
    pub gpu_sizes: Vec<usize>,
    /// Threads of the rank; a single thread is measured as well.
    pub threads: usize,
    /// Whether to measure the first visible GPU, if any.
    pub gpu: bool,
    /// Repetitions.
    pub timing: TimingOptions,
}

impl Default for GemmSettings {
    fn default() -> Self {
        Self {
            sizes: vec![512, 1024, 2048],
            gpu_sizes: vec![2048, 4096, 8192],
            threads: rank_threads(),
            gpu: true,
            timing: TimingOptions::default(),
        }
    }
}

impl GemmSettings {
    fn check(&self) -> Result {
        let mut sizes = self.sizes.iter().chain(&self.gpu_sizes);
        let Some(size) = sizes.find(|size| !(1..=MAX_ROWS).contains(*size)) else { return Ok(()) };
        let message = format!("invalid matrix size {size}: expected 1 to {MAX_ROWS} rows");
        Err(RooflineError::InvalidSetting { message })
    }
}

/// Measures GEMM on this rank's cores and GPU. A missing or failing GPU is noted in the first row.
/// Once `stop` is set, returns the rows measured so far.
pub fn measure(
    settings: &GemmSettings,
    stop: &AtomicBool,
    report: &mut dyn FnMut(CaseProgress<'_>),
) -> Result<Vec<RooflineRow>> {
    settings.check()?;
    let mut cases = Cases::new(stop, report);
    let device = settings.gpu.then(|| cases.device(super::gpu::open())).flatten();
    let device = device.and_then(|device| cases.device(gpu::GpuGemm::open(device).map(Some)));
    let counts = thread_counts(settings.threads);
    let of_gpu = device.as_ref().map_or(0, |device| device.cases(settings));
    cases.total = 2 * counts.len() * settings.sizes.len() + of_gpu;
    cpu::measure::<f32>(&mut cases, settings, &counts)?;
    cpu::measure::<f64>(&mut cases, settings, &counts)?;
    if let Some(device) = device {
        let done = device.measure(&mut cases, settings);
        cases.device(done.map(Some));
    }
    Ok(cases.into_rows())
}

/// A product of square matrices on one thread.
pub(super) fn square(rows: usize) -> impl ThreadKernel {
    cpu::SquareGemm::<f32>::new(rows)
}

/// Measures bf16 products on a GPU, if it supports them.
pub(super) fn measure_gpu_bf16(
    device: RooflineGpu,
    cases: &mut Cases<'_>,
    settings: &GemmSettings,
) -> GpuResult {
    gpu::GpuGemm::open(device)?.measure_dtypes(cases, settings, &[GemmType::Bf16])
}

/// The row of products of `size` × `size` matrices.
fn row(timed: &Samples, what: String, size: usize) -> RooflineRow {
    let gflop = 2.0 * (size as f64).powi(3) / 1e9;
    timed.row(RooflineKind::Gemm, what, gflop, RateUnit::Gflops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_named_by_type_size_and_threads() {
        let settings = GemmSettings {
            sizes: vec![5, 16],
            threads: 3,
            gpu: false,
            timing: TimingOptions::minimal(),
            ..GemmSettings::default()
        };
        let mut totals = Vec::new();
        let mut report = |progress: CaseProgress<'_>| totals.push((progress.done, progress.total));
        let rows = measure(&settings, &AtomicBool::new(false), &mut report).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let cases = ["5, 1 thread", "5, 3 threads", "16, 1 thread", "16, 3 threads"];
        let of_type = |dtype| cases.map(|case| format!("{dtype} {case}"));
        assert_eq!(names, ["f32", "f64"].map(of_type).concat());
        assert_eq!((totals.first(), totals.last()), (Some(&(0, 8)), Some(&(8, 8))));
        for row in &rows {
            assert!(row.median > 0.0 && row.best >= row.median && row.repetitions == 2, "{row:?}");
            assert_eq!((row.device.as_str(), row.unit), ("cpu", RateUnit::Gflops));
        }
        assert!(rows[0].notes.is_empty(), "no GPU was requested");
    }

    #[test]
    fn gemm_counts_two_operations_per_multiply_add() {
        let timed = Samples::new(4, vec![Duration::from_secs(2)]).unwrap();
        assert!((row(&timed, String::new(), 1000).best - 4.0).abs() < 1e-9);
    }

    #[test]
    fn matrix_sizes_out_of_range_are_rejected() {
        for size in [0, MAX_ROWS + 1] {
            let settings = GemmSettings { sizes: vec![512, size], ..GemmSettings::default() };
            let found = measure(&settings, &AtomicBool::new(false), &mut |_| ());
            assert!(found.unwrap_err().to_string().contains(&size.to_string()));
        }
    }
}
