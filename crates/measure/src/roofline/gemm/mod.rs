//! GEMM throughput in FLOP/s on this rank's cores and GPU.
//!
//! A product of two n × n matrices counts as 2n³ operations. On the CPU each thread computes one
//! tile.

mod cpu;
mod gpu;

pub(super) use cpu::SquareGemm;
pub(super) use gpu::GpuGemm;
use regatta_model::{RateUnit, RooflineKind};

use super::gpu::GemmType;
use super::timing::Samples;
use super::{CaseProgress, Cases, Result, RooflineRow, RooflineSettings, thread_counts};

/// The sizes of products.
pub fn settings() -> RooflineSettings {
    RooflineSettings::of_sizes(&[512, 1024, 2048], &[2048, 4096, 8192])
}

/// Measures GEMM on this rank's cores and GPU. A missing or failing GPU is noted in the first row.
pub fn measure(
    settings: &RooflineSettings,
    report: &mut dyn FnMut(CaseProgress<'_>),
) -> Result<Vec<RooflineRow>> {
    let mut cases = Cases::new(report);
    let device = settings.gpu.then(|| cases.device(super::gpu::open())).flatten();
    let device = device.and_then(|device| cases.device(GpuGemm::open(device).map(Some)));
    let counts = thread_counts(settings.threads);
    let of_gpu = device.as_ref().map_or(0, |device| device.cases(settings));
    cases.total = 2 * counts.len() * settings.sizes.len() + of_gpu;
    cpu::measure::<f32>(&mut cases, settings, &counts)?;
    cpu::measure::<f64>(&mut cases, settings, &counts)?;
    if let Some(device) = device {
        let done = device.measure(&mut cases, settings, &GemmType::ALL);
        cases.device(done.map(Some));
    }
    Ok(cases.into_rows())
}

/// The row of products of `size` × `size` matrices.
fn row(timed: &Samples, what: String, size: usize) -> RooflineRow {
    let gflop = 2.0 * (size as f64).powi(3) / 1e9;
    timed.row(RooflineKind::Gemm, what, gflop, RateUnit::Gflops)
}

#[cfg(test)]
mod tests {
    use super::super::TimingOptions;
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_named_by_type_size_and_threads() {
        let (sizes, threads, gpu) = (vec![5, 16], 3, false);
        let timing = TimingOptions::minimal();
        let settings = RooflineSettings { sizes, threads, gpu, timing, ..settings() };
        let mut totals = Vec::new();
        let mut report = |progress: CaseProgress<'_>| totals.push((progress.done, progress.total));
        let rows = measure(&settings, &mut report).unwrap();
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
        let timed = Samples::new(4, vec![Duration::from_secs(2)]);
        assert!((row(&timed, String::new(), 1000).best - 4.0).abs() < 1e-9);
    }
}
