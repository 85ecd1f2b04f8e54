//! The CPU device: multi-threaded, vectorised kernels in f32, or with bf16 activations and GEMMs.
//!
//! Start with `isa` for how a kernel is compiled for each instruction set, `lanes` for the vector type that
//! kernels are written in, `thread_pool` for how work is split, `gemm`, and `attention`. Results are
//! reproducible for a given number of threads.

mod activation;
mod attention;
mod cache_info;
mod elementwise;
mod embedding;
pub mod gemm;
mod isa;
mod kernel_times;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
mod lanes_avx512;
mod linear;
mod loss;
mod math;
mod memory;
mod norm;
mod optimizer;
mod rope;
mod scratch;
mod slice;
mod thread_pool;

use self::gemm::bf16::Kernel;
use self::gemm::parallel_bf16::Bf16Gemm;
use self::isa::Isa;
use self::kernel_times::{KernelTimer, KernelTimes};
use self::scratch::{Scratch, ScratchPool};
use self::thread_pool::ThreadPool;
use regatta_device::Fp8Ops;
use regatta_device::precision::Precision;

/// The CPU.
#[derive(Debug)]
pub struct Cpu {
    pool: ThreadPool,
    isa: Isa,
    precision: Precision,
    scratch_pool: ScratchPool,
    rope_table: rope::RopeTable,
    bf16_gemm: Bf16Gemm,
    kernel_times: KernelTimes,
    /// Largest depth that an f32 GEMM packs at once.
    max_kc: usize,
}

impl Fp8Ops for Cpu {}

impl Cpu {
    /// A device of `threads` threads, at least one.
    pub fn new(threads: usize, precision: Precision) -> Self {
        Self::with_isa(threads, precision, Isa::best())
    }

    fn with_isa(threads: usize, precision: Precision, isa: Isa) -> Self {
        Self {
            pool: ThreadPool::new(threads),
            isa,
            precision,
            scratch_pool: ScratchPool::default(),
            rope_table: rope::RopeTable::default(),
            bf16_gemm: Bf16Gemm::new(isa),
            kernel_times: KernelTimes::default(),
            max_kc: cache_info::max_kc(),
        }
    }

    /// The precision that this CPU is fastest at: bf16 if it has instructions for it.
    pub fn fastest_precision() -> Precision {
        match Kernel::best().has_bf16_instructions() {
            true => Precision::Bf16,
            false => Precision::F32,
        }
    }

    /// Threads, precision and GEMM kernel, such as `2 threads, f32 on avx512`.
    pub fn describe(&self) -> String {
        let threads = match self.pool.threads() {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        format!("{threads}, {} on {}", self.precision.name(), self.gemm_kernel())
    }

    /// Name of the GEMM kernel, such as `avx512` or `amx-bf16`.
    pub fn gemm_kernel(&self) -> &'static str {
        match self.precision {
            Precision::F32 => self.isa.name(),
            Precision::Bf16 => self.bf16_gemm.kernel.name(),
        }
    }

    /// Times an operation until the guard is dropped, if timing is on.
    fn timer(&self, name: &str) -> Option<KernelTimer<'_>> {
        self.kernel_times.timer(|| name.to_owned())
    }

    fn scratch(&self, len: usize) -> Scratch<'_> {
        self.scratch_pool.take(len)
    }
}

#[cfg(test)]
mod tests;
