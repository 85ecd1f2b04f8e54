//! bf16 GEMM on all threads.

use crate::Cpu;
use crate::attention::HeadScratch;
use crate::gemm::bf16::{
    self, GemmScratch, Kernel, MatrixSliceMut, OperandA, OutputBlock, OutputPtr, PackedA, PackedB,
};
use crate::gemm::task_grid::{BlockSize, TaskGrid};
use crate::gemm::{GemmArgs, GemmShape, MIN_WORK_PER_THREAD};
use crate::isa::{Isa, IsaKind};
use crate::scratch::ObjectPool;
use crate::slice::DisjointMut;
use regatta_device::tensor::ViewMut;

/// Multiply-adds of a task that takes a few tens of microseconds.
const BALANCED_WORK: usize = 8 << 20;

/// Blocks have full tiles.
const BLOCK_TILE: BlockSize = BlockSize { rows: bf16::MAX_TILE_ROWS, columns: bf16::TILE_COLUMNS };

/// Kernel and reused buffers of bf16 GEMMs.
#[derive(Debug)]
pub struct Bf16Gemm {
    /// The kernel.
    pub kernel: Kernel,
    packed: ObjectPool<PackedB>,
    packed_a: ObjectPool<PackedA>,
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
        let (packed, packed_a, scratch, heads) = Default::default();
        Self { kernel, packed, packed_a, scratch, heads }
    }

    /// Calls a function with buffers that nothing else uses.
    fn with_scratch(&self, work: impl FnOnce(&mut GemmScratch)) {
        let mut scratch = self.scratch.take();
        work(&mut scratch);
        self.scratch.put_back(scratch);
    }
}

impl Cpu {
    /// All threads pack B; then each multiplies some rows, or some blocks of the output.
    pub(crate) fn gemm_bf16(&self, args: GemmArgs<'_>, c: ViewMut<'_>) {
        let GemmShape { m, n, k } = args.shape;
        let Bf16Gemm { kernel, packed: packed_pool, .. } = &self.bf16_gemm;
        let threads = self.pool.tasks(args.shape.work(), MIN_WORK_PER_THREAD);
        let timer = self.kernel_times.timer(|| format!("pack {k} by {n} to bf16"));
        let mut packed = packed_pool.take();
        packed.pack_parallel(*kernel, [k, n], args.b, threads, &|tasks, work| {
            self.pool.run(tasks, work);
        });
        drop(timer);
        let _timer = self.kernel_times.timer(|| format!("gemm {m}x{n}x{k} bf16"));
        match kernel.max_block() {
            Some(max) => {
                let grid = TaskGrid::new(args.shape, BLOCK_TILE, max, threads);
                self.multiply_blocks(&args, &packed, &grid, DisjointMut::new(c));
            }
            None => self.multiply_rows(&args, &packed, DisjointMut::new(c)),
        }
        packed_pool.put_back(packed);
    }

    fn multiply_rows(&self, args: &GemmArgs<'_>, packed: &PackedB, c: DisjointMut<'_>) {
        let GemmArgs { shape: GemmShape { m, n, .. }, a, epilogue, .. } = *args;
        let work = args.shape.work();
        let tasks = self.pool.balanced_tasks(work, MIN_WORK_PER_THREAD, BALANCED_WORK);
        self.pool.run_split(m, tasks, bf16::MAX_TILE_ROWS, |rows| {
            // SAFETY: rows are disjoint.
            let elements = unsafe { c.slice(rows.start * n..rows.end * n) };
            let (a, c) = (a.at_row(rows.start), MatrixSliceMut::row_major(elements, n));
            self.bf16_gemm.with_scratch(|scratch| {
                bf16::gemm_packed(rows.len(), a, packed.into(), epilogue, c, scratch);
            });
        });
    }

    fn multiply_blocks(
        &self,
        args: &GemmArgs<'_>,
        packed: &PackedB,
        grid: &TaskGrid,
        c: DisjointMut<'_>,
    ) {
        let GemmArgs { shape: GemmShape { n, k, .. }, a, epilogue, .. } = *args;
        let Bf16Gemm { kernel, packed_a: packed_a_pool, .. } = &self.bf16_gemm;
        let mut packed_a = packed_a_pool.take();
        // Otherwise the only task that uses some rows packs them into its cache.
        let shares_packed = grid.shares_rows() && !bf16::reads_in_place(*kernel, &a, k);
        if shares_packed {
            let row_blocks: Vec<_> = grid.row_blocks().collect();
            packed_a.pack_parallel(*kernel, &a, &row_blocks, k, &|tasks, work| {
                self.pool.run(tasks, work);
            });
        }
        self.pool.run(grid.tasks(), |task| {
            let (rows, columns) = grid.block(task);
            let a = match shares_packed {
                true => OperandA::Packed(packed_a.block(grid.row_block(task))),
                false => OperandA::Matrix(a.at_row(rows.start)),
            };
            let c = OutputPtr { elements: c.ptr(rows.start * n), row_stride: n };
            let block = OutputBlock { rows: rows.len(), columns, a, b: packed.into(), epilogue, c };
            // SAFETY: `gemm` checked the bounds, and blocks are disjoint.
            self.bf16_gemm.with_scratch(|scratch| unsafe { bf16::gemm_block(&block, scratch) });
        });
        packed_a_pool.put_back(packed_a);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Epilogue;
    use crate::gemm::bf16::MatrixSlice;
    use crate::slice::Slice;
    use half::bf16;
    use proptest::prelude::*;
    use regatta_comm::DType;
    use regatta_device::DeviceMemory;
    use regatta_device::precision::Precision;
    use regatta_device::random::uniform;
    use regatta_device::tensor::{Tensor, View};

    fn kernels() -> Vec<Kernel> {
        let best = [Kernel::best()].into_iter().filter(|kernel| kernel.max_block().is_some());
        #[cfg(target_arch = "x86_64")]
        return best.chain([Kernel::AmxEmulated]).collect();
        #[cfg(not(target_arch = "x86_64"))]
        return best.collect();
    }

    fn random_values(key: u64, len: usize) -> Vec<f32> {
        (0..len as u64).map(|i| (uniform(key, i) - 0.5) as f32).collect()
    }

    #[derive(Debug, Clone, Copy)]
    struct BlockCase {
        shape: GemmShape,
        a_transposed: bool,
        a_is_f32: bool,
        b_transposed: bool,
        output: DType,
        epilogue: usize,
        max: [usize; 2],
    }

    fn block_case() -> impl Strategy<Value = BlockCase> {
        let size = || prop_oneof![1..100_usize, (1..4_usize).prop_map(|tiles| 32 * tiles)];
        // Up to three depth blocks.
        let depth = prop_oneof![1..100_usize, 1000..1100_usize, Just(1024), Just(2112)];
        let max = || (1..4_usize).prop_map(|tiles| 32 * tiles);
        let output = prop_oneof![Just(DType::F32), Just(DType::Bf16)];
        let flags = any::<[bool; 3]>();
        (size(), size(), depth, flags, output, 0..3_usize, [max(), max()]).prop_map(
            |(m, n, k, [a_transposed, a_is_f32, b_transposed], output, epilogue, max)| BlockCase {
                shape: GemmShape { m, n, k },
                a_transposed,
                a_is_f32,
                b_transposed,
                output,
                epilogue,
                max,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 12 } else { 100 }))]

        #[test]
        fn blocks_have_the_bits_of_one_block(case in block_case()) {
            let BlockCase { shape: shape @ GemmShape { m, n, k }, output, .. } = case;
            let (a, b) = (random_values(1, m * k), random_values(2, k * n));
            let a_bf16: Vec<bf16> = a.iter().map(|x| bf16::from_f32(*x)).collect();
            let (bias, initial) = (random_values(3, n), random_values(4, m * n));
            let matrix = |elements, columns: usize, rows: usize, transposed: bool| match transposed {
                false => MatrixSlice::row_major(elements, columns),
                true => MatrixSlice::row_major(elements, rows).transposed(),
            };
            let elements = if case.a_is_f32 { Slice::F32(&a) } else { Slice::Bf16(&a_bf16) };
            let args = GemmArgs {
                shape,
                a: matrix(elements, k, m, case.a_transposed),
                b: matrix(Slice::F32(&b), n, k, case.b_transposed),
                epilogue: match case.epilogue {
                    0 => Epilogue::Store,
                    1 => Epilogue::Bias(&bias),
                    _ => Epilogue::Accumulate,
                },
            };
            for kernel in kernels() {
                let mut cpu = Cpu::new(3, Precision::Bf16);
                cpu.bf16_gemm = Bf16Gemm::with_kernel(kernel);
                let mut packed = PackedB::default();
                packed.pack(kernel, k, n, args.b);
                let product = |max: BlockSize| {
                    let mut c = Tensor::zeros(m * n, output);
                    cpu.copy(View::from_slice(&initial[..]), c.view_mut());
                    let grid = TaskGrid::new(shape, BLOCK_TILE, max, 3);
                    cpu.multiply_blocks(&args, &packed, &grid, DisjointMut::new(c.view_mut()));
                    c.host_bytes_mut().to_vec()
                };
                let [rows, columns] = case.max;
                let expected = product(BlockSize { rows: 1 << 20, columns: 1 << 20 });
                let found = product(BlockSize { rows, columns });
                prop_assert!(found == expected, "{}", kernel.name());
            }
        }
    }
}
