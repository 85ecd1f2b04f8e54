//! bf16 GEMM on all threads.

use crate::Cpu;
use crate::attention::HeadScratch;
use crate::gemm::bf16::{self, GemmScratch, Kernel, MatrixSliceMut, PackedB};
use crate::gemm::{GemmArgs, GemmShape, MIN_WORK_PER_THREAD};
use crate::isa::{Isa, IsaKind};
use crate::scratch::ObjectPool;
use crate::slice::DisjointMut;
use crate::thread_pool::task_range;
use regatta_device::tensor::ViewMut;

/// Multiply-adds of a task that takes a few tens of microseconds.
const BALANCED_WORK: usize = 8 << 20;

/// Kernel and reused buffers of bf16 GEMMs.
#[derive(Debug)]
pub struct Bf16Gemm {
    /// The kernel.
    pub kernel: Kernel,
    packed: ObjectPool<PackedB>,
    scratch: ObjectPool<GemmScratch>,
    /// Buffers of attention heads.
    pub heads: ObjectPool<HeadScratch>,
}

impl Bf16Gemm {
    /// With the best kernel of an instruction set.
    pub fn new(isa: Isa) -> Self {
        Self::with_kernel(match isa.kind() {
            IsaKind::Portable => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => Kernel::Avx2,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 | IsaKind::Avx512Bf16 => Kernel::best(),
        })
    }

    /// With a kernel that the CPU supports.
    pub fn with_kernel(kernel: Kernel) -> Self {
        let (packed, scratch, heads) = Default::default();
        Self { kernel, packed, scratch, heads }
    }
}

impl Cpu {
    /// All threads pack B; then each multiplies some rows.
    pub(crate) fn gemm_bf16(&self, args: GemmArgs<'_>, c: ViewMut<'_>) {
        let GemmArgs { shape, a, b, epilogue } = args;
        let GemmShape { m, n, k } = shape;
        let Bf16Gemm { kernel, packed: packed_pool, scratch: scratch_pool, .. } = &self.bf16_gemm;
        let tasks = self.pool.tasks(shape.work(), MIN_WORK_PER_THREAD);
        let timer = self.kernel_times.timer(|| format!("pack {k} by {n} to bf16"));
        let mut packed = packed_pool.take();
        let run = |tasks: usize, work: &(dyn Fn(usize) + Sync)| self.pool.run(tasks, work);
        packed.pack_parallel(*kernel, [k, n], b, tasks, &run);
        drop(timer);
        let _timer = self.kernel_times.timer(|| format!("gemm {m}x{n}x{k} bf16"));
        let c = DisjointMut::new(c);
        let tasks = self.pool.balanced_tasks(shape.work(), MIN_WORK_PER_THREAD, BALANCED_WORK);
        self.pool.run(tasks, |task| {
            let rows = task_range(m, tasks, task, bf16::MAX_TILE_ROWS);
            if rows.is_empty() {
                return;
            }
            // SAFETY: rows are disjoint.
            let elements = unsafe { c.slice(rows.start * n..rows.end * n) };
            let mut scratch = scratch_pool.take();
            let (a, c) = (a.at_row(rows.start), MatrixSliceMut::row_major(elements, n));
            bf16::gemm_packed(rows.len(), a, (&packed).into(), epilogue, c, &mut scratch);
            scratch_pool.put_back(scratch);
        });
        packed_pool.put_back(packed);
    }
}
