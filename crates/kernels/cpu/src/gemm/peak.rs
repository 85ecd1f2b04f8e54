//! Peak throughput of GEMMs, to which the throughput of training is compared.

use std::time::{Duration, Instant};

use regatta_device::LinearOps;
use regatta_device::ops::{DeviceMemory, LinearArgs, LinearShape};
use regatta_device::tensor::Tensor;
use rustix::time::{ClockId, clock_gettime};

use crate::Cpu;

/// Time until the clock frequency is that of sustained AVX-512 or AMX load.
const WARM_UP: Duration = Duration::from_millis(40);

/// Time of the measurement after the warm-up, except for its last repetition.
const MEASUREMENT: Duration = Duration::from_millis(80);

/// Minimum CPU time of a repetition.
const REPETITION: Duration = Duration::from_millis(4);

/// A longer GEMM is large enough.
const LARGE_GEMM: Duration = Duration::from_millis(1);

/// Maximum size: above it the throughput of a thread hardly grows.
const MAX_SIZE: usize = 512;

impl Cpu {
    /// Sum of the peak GEMM throughputs of the threads, in FLOP per second of CPU time; takes about
    /// 0.12 s. All threads are busy at the same time, because cores share caches and power, but each
    /// has a GEMM of its own and counts its own CPU time: other processes and waiting threads do not
    /// lower the result.
    pub fn measure_gemm(&self) -> f64 {
        let measure = || thread_peak(&Self::with_isa(1, self.precision, self.isa));
        std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, measure).ok();
            let threads: Vec<_> = (0..self.pool.threads()).filter_map(spawn).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })
    }
}

/// The best repetition of this thread in FLOP per second of CPU time.
fn thread_peak(device: &Cpu) -> f64 {
    let start = Instant::now();
    let mut gemm = SquareGemm::new(device, 128);
    while start.elapsed() < WARM_UP {
        let begin = cpu_time();
        gemm.run();
        if cpu_time() - begin < LARGE_GEMM && gemm.size < MAX_SIZE {
            gemm = SquareGemm::new(device, 2 * gemm.size);
        }
    }
    let mut best = 0.0f64;
    while start.elapsed() < WARM_UP + MEASUREMENT || best == 0.0 {
        let (begin, mut flops, mut elapsed) = (cpu_time(), 0.0, Duration::ZERO);
        while elapsed < REPETITION {
            gemm.run();
            flops += 2.0 * (gemm.size as f64).powi(3);
            elapsed = cpu_time() - begin;
        }
        best = best.max(flops / elapsed.as_secs_f64());
    }
    best
}

/// A linear layer with square matrices in the types of training: activations in the device's
/// precision, weights in f32.
struct SquareGemm<'a> {
    device: &'a Cpu,
    size: usize,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
}

impl<'a> SquareGemm<'a> {
    fn new(device: &'a Cpu, size: usize) -> Self {
        let elements = size * size;
        let [mut x, y] = [(); 2].map(|()| device.zeros_activation(elements));
        let mut weight = device.zeros_master(elements);
        // Zeros would draw less power.
        let values: Vec<f32> = (0..elements).map(|at| (at % 31) as f32 / 16.0 - 1.0).collect();
        for tensor in [&mut x, &mut weight] {
            device.copy_from_host(&values, tensor.view_mut());
        }
        Self { device, size, x, weight, y }
    }

    fn run(&mut self) {
        let Self { device, size: n, x, weight, y } = self;
        let shape = LinearShape { rows: *n, inputs: *n, outputs: *n };
        let (x, weight, y) = (x.view(), weight.view(), y.view_mut());
        device.linear(LinearArgs { shape, x, weight, bias: None, y });
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_device::precision::Precision;

    #[test]
    fn throughput_per_thread_does_not_depend_on_oversubscription() {
        for precision in [Precision::F32, Precision::Bf16] {
            let per_thread = |threads| Cpu::new(threads, precision).measure_gemm() / threads as f64;
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let [one_each, four_each] = [cores, 4 * cores].map(per_thread);
            assert!(one_each > 0.0 && one_each.is_finite(), "{one_each}");
            // By wall-clock time it would be a quarter.
            assert!(four_each > one_each / 2.0, "{precision:?}: {four_each:e}, {one_each:e}");
        }
    }
}
