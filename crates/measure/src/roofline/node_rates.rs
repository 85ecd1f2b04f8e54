//! Short measurements of a node, to compare it with others: GEMM and copies on all cores and on
//! each GPU, in about a second.
//!
//! Threads of the CPU test do not wait for each other, and their calls are shorter than a time
//! slice. The best call of a thread is therefore undisturbed even on busy cores, while the mean shows
//! what the node can sustain.

use std::thread;
use std::time::{Duration, Instant};

use regatta_comm::gpu_runtime::Vendor;
use regatta_model::bench::{Rate, RateTest};

use super::gemm::{GpuGemm, SquareGemm};
use super::gpu::{GemmType, GpuResult, RooflineGpu};
use super::threads::ThreadKernel;
use super::{
    Cases, Result, RooflineError, RooflineRow, RooflineSettings, TimingOptions, copy, gemm,
};

/// Rows of the matrices of a CPU thread.
const GEMM_ROWS: usize = 256;
/// Bytes that a CPU thread copies per call: more than its share of the caches.
const COPY_BYTES: usize = 8 << 20;
/// Rows of the matrices on a GPU.
const GPU_GEMM_ROWS: usize = 4096;
/// Bytes of a copy on or to a GPU.
const GPU_COPY_BYTES: usize = 256 << 20;

/// Measures the cores with this many threads, each test for this time.
pub fn cpus(threads: usize, time: Duration) -> Result<Vec<Rate>> {
    let flops = 2.0 * (GEMM_ROWS as f64).powi(3);
    let products = || SquareGemm::<f32>::new(GEMM_ROWS);
    let gemm = rate(RateTest::Gemm, flops, threads, time, products)?;
    let copies = || copy::copies(COPY_BYTES);
    Ok(vec![gemm, rate(RateTest::Copy, COPY_BYTES as f64, threads, time, copies)?])
}

/// Runs a kernel of `amount` operations on all threads, independently of each other.
fn rate<K: ThreadKernel>(
    test: RateTest,
    amount: f64,
    threads: usize,
    time: Duration,
    kernel: impl Fn() -> K,
) -> Result<Rate> {
    let of_threads = thread::scope(|scope| {
        let start = |_| {
            let mut kernel = kernel();
            let measure = move || repeat(&mut kernel, amount, time);
            let started = thread::Builder::new().spawn_scoped(scope, measure);
            started.map_err(|source| RooflineError::Threads { threads, source })
        };
        let started: Vec<_> = (0..threads.max(1)).map(start).collect::<Result<_>>()?;
        // A thread that panics has no rate; the scope propagates the panic.
        Ok(started.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>())
    })?;
    let sum = |of: fn(&(f64, f64)) -> f64| of_threads.iter().map(of).sum();
    Ok(Rate { test, gpu: None, best: sum(|r| r.0), sustained: sum(|r| r.1) })
}

/// Best and mean rate of calls for this time.
fn repeat(kernel: &mut impl ThreadKernel, amount: f64, time: Duration) -> (f64, f64) {
    kernel.init();
    kernel.run();
    let (start, mut calls, mut best) = (Instant::now(), 0, f64::INFINITY);
    while calls < 3 || start.elapsed() < time {
        let call = Instant::now();
        kernel.run();
        best = best.min(call.elapsed().as_secs_f64());
        calls += 1;
    }
    // The clock has a resolution of nanoseconds.
    (amount / best.max(1e-9), f64::from(calls) * amount / start.elapsed().as_secs_f64().max(1e-9))
}

/// Measures the first `count` visible GPUs. A GPU that fails is noted.
pub fn gpus(vendor: Vendor, count: u32) -> (Vec<Rate>, Vec<String>) {
    let (mut rates, mut notes) = (Vec::new(), Vec::new());
    for index in 0..count {
        match gpu(vendor, index) {
            Ok(measured) => rates.extend(measured),
            Err(error) => notes.push(format!("GPU {index} was not measured: {error}")),
        }
    }
    (rates, notes)
}

fn gpu(vendor: Vendor, index: u32) -> GpuResult<Vec<Rate>> {
    let [repetition_time, case_time] = [10, 100].map(Duration::from_millis);
    let timing = TimingOptions { max_repetitions: 10, repetition_time, case_time };
    let mut report = |_: super::CaseProgress<'_>| ();
    let mut cases = Cases::new(&mut report);
    let device = RooflineGpu::open(vendor, index)?;
    let gpu_sizes = vec![GPU_COPY_BYTES];
    let settings = RooflineSettings { gpu_sizes, timing, ..copy::settings() };
    let mut tests = copy::measure_gpu(&device, &mut cases, &settings)?;
    let gpu_sizes = vec![GPU_GEMM_ROWS];
    let settings = RooflineSettings { gpu_sizes, timing, ..gemm::settings() };
    GpuGemm::open(device)?.measure(&mut cases, &settings, &[GemmType::Bf16])?;
    tests.push(RateTest::Gemm);
    // Rows are in units of 1e9.
    let rate = |(test, row): (RateTest, RooflineRow)| Rate {
        test,
        gpu: Some(index),
        best: row.best * 1e9,
        sustained: row.median * 1e9,
    };
    Ok(tests.into_iter().zip(cases.into_rows()).map(rate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_have_rates_of_gemm_and_copy() {
        let rates = cpus(2, Duration::from_millis(5)).unwrap();
        let tests: Vec<RateTest> = rates.iter().map(|rate| rate.test).collect();
        assert_eq!(tests, [RateTest::Gemm, RateTest::Copy]);
        for rate in rates {
            assert!(rate.best >= rate.sustained && rate.sustained > 0.0, "{rate:?}");
            assert!(rate.best.is_finite());
        }
    }

    #[test]
    fn a_missing_gpu_is_noted() {
        let (rates, notes) = gpus(Vendor::Nvidia, 0);
        assert!(rates.is_empty() && notes.is_empty());
        if !std::path::Path::new("/dev/nvidiactl").exists() {
            let (rates, notes) = gpus(Vendor::Nvidia, 1);
            assert!(rates.is_empty() && notes[0].starts_with("GPU 0 was not measured: "));
        }
    }
}
