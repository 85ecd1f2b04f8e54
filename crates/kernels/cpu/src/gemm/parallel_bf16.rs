//! bf16 GEMM on all threads.

use crate::Cpu;
use crate::attention::HeadScratch;
use crate::gemm::bf16::{
    self, GemmScratch, Kernel, OperandA, OutputBlock, PackedA, PackedB, PackedBView,
};
use crate::gemm::task_grid::{MaxBlock, TaskGrid, TileSize};
use crate::gemm::{GemmArgs, GemmShape, MIN_WORK_PER_THREAD};
use crate::isa::{Isa, IsaKind};
use crate::scratch::ObjectPool;
use crate::slice::DisjointMut;
use regatta_device::tensor::ViewMut;

/// The operands of a block fit into L2: at a depth of 512, 256 KiB of A, 512 KiB of B and 512 KiB of sums.
const MAX_BLOCK: MaxBlock = MaxBlock { rows: 256, columns: 512 };

/// Packing tasks per thread, at most: a thread that is delayed by another process packs less.
const PACK_TASKS: usize = 3;

/// Larger operands are not packed as a whole, to save memory.
const MAX_PACKED_A_ELEMENTS: usize = 32 << 20;

/// With fewer columns, packing A takes longer than it saves.
const MIN_COLUMNS_TO_PACK_A: usize = 64;

/// Tasks per thread from which on rows that are read in place are not split by columns, too.
const MIN_TASKS: usize = 2;

/// Maximum columns of a block that packs A for all of them.
const MAX_UNSPLIT_COLUMNS: usize = 2048;

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
}

impl Cpu {
    /// All threads pack both operands; then they multiply blocks of the output.
    pub(crate) fn gemm_bf16(&self, args: GemmArgs<'_>, c: ViewMut<'_>) {
        let GemmArgs { shape, a, b, epilogue } = args;
        let GemmShape { m, n, k } = shape;
        let Bf16Gemm { kernel, packed: packed_pool, packed_a, scratch, .. } = &self.bf16_gemm;
        let threads = self.pool.tasks(shape.work(), MIN_WORK_PER_THREAD);
        let timer = self.kernel_times.timer(|| format!("pack {k} by {n} to bf16"));
        let mut packed = packed_pool.take();
        let run = |tasks: usize, work: &(dyn Fn(usize) + Sync)| self.pool.run(tasks, work);
        packed.pack_parallel(*kernel, [k, n], b, PACK_TASKS * threads, &run);
        let packing = match PackedA::is_unnecessary(*kernel, &a, [m, k]) {
            true => PackingOfA::InPlace,
            false => PackingOfA::for_shape(*kernel, shape),
        };
        let grid = packing.task_grid(shape, threads);
        let mut a_lines = packed_a.take();
        let panels = (packing == PackingOfA::Once).then(|| {
            let rows: Vec<_> = (0..grid.row_blocks()).map(|block| grid.rows(block)).collect();
            let depth_parts = (PACK_TASKS * threads).div_ceil(rows.len());
            a_lines.pack_parallel(*kernel, &a, k, &rows, depth_parts, &run)
        });
        drop(timer);
        let _timer = self.kernel_times.timer(|| format!("gemm {m}x{n}x{k} bf16"));
        let elements = DisjointMut::new(c);
        self.pool.run(grid.tasks(), |task| {
            let (rows, columns) = grid.block(task);
            if rows.is_empty() || columns.is_empty() {
                return;
            }
            let a = match &panels {
                Some(panels) => OperandA::Packed(panels[task % grid.row_blocks()]),
                None => OperandA::Matrix(a.at_row(rows.start)),
            };
            let b = PackedBView::from(&packed).columns(columns.clone());
            let epilogue = epilogue.at_column(columns.start);
            let c = OutputBlock { elements, first: rows.start * n + columns.start, row_stride: n };
            let mut buffers = scratch.take();
            // SAFETY: blocks are disjoint, and panels have the rows of their block and the depth of B.
            unsafe { bf16::gemm_block(rows.len(), a, b, epilogue, c, &mut buffers) };
            scratch.put_back(buffers);
        });
        packed_a.put_back(a_lines);
        packed_pool.put_back(packed);
    }
}

/// How blocks of the output read A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackingOfA {
    /// From its rows.
    InPlace,
    /// Packed as a whole before.
    Once,
    /// Packed by each block.
    PerBlock,
}

impl PackingOfA {
    /// Of a matrix that must be packed.
    fn for_shape(kernel: Kernel, GemmShape { m, n, k }: GemmShape) -> Self {
        let pays_off = m >= bf16::MAX_TILE_ROWS && n >= MIN_COLUMNS_TO_PACK_A;
        let fits = m.saturating_mul(k) <= MAX_PACKED_A_ELEMENTS;
        let is_once = PackedA::is_supported(kernel) && pays_off && fits;
        if is_once { Self::Once } else { Self::PerBlock }
    }

    /// The blocks of the output. Rows that are read in place are those of one tile, which stay in L1 for all
    /// columns if there are enough of them. Blocks that pack A have all columns, if these are few, so that
    /// each element is packed once.
    fn task_grid(self, shape: GemmShape, threads: usize) -> TaskGrid {
        let tile = TileSize { rows: bf16::MAX_TILE_ROWS, columns: bf16::TILE_COLUMNS };
        let all_columns = match self {
            Self::InPlace => shape.m.div_ceil(tile.rows) >= MIN_TASKS * threads,
            Self::Once => false,
            Self::PerBlock => shape.n <= MAX_UNSPLIT_COLUMNS,
        };
        let columns = if all_columns { shape.n.max(1) } else { tile.columns };
        let max = MaxBlock {
            rows: if self == Self::InPlace { tile.rows } else { MAX_BLOCK.rows },
            columns: columns.max(MAX_BLOCK.columns),
        };
        TaskGrid::new(shape, TileSize { columns, ..tile }, max, threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Epilogue;
    use crate::gemm::bf16::{MatrixSlice, Slice};
    use regatta_device::precision::Precision;
    use regatta_device::random::{key, uniform};

    /// Shapes with several blocks of rows and columns, and with staged sums.
    const SHAPES: [GemmShape; 4] = [
        GemmShape { m: 300, n: 700, k: 70 },
        GemmShape { m: 70, n: 1100, k: 100 },
        GemmShape { m: 40, n: 40, k: 4200 },
        GemmShape { m: 33, n: 65, k: 1056 },
    ];

    fn values(seed: u64, len: usize) -> Vec<f32> {
        (0..len as u64).map(|i| (uniform(key(seed, &[1]), i) - 0.5) as f32).collect()
    }

    fn kernels() -> Vec<Kernel> {
        let mut kernels = vec![Kernel::Portable, Kernel::best()];
        #[cfg(target_arch = "x86_64")]
        kernels.push(Kernel::AmxEmulated);
        kernels
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        for (shape, kernel) in
            SHAPES.iter().flat_map(|s| kernels().into_iter().map(move |k| (*s, k)))
        {
            let GemmShape { m, n, k } = shape;
            let (a, b, bias) = (values(1, m * k), values(2, k * n), values(3, n));
            let a_bf16: Vec<_> = a.iter().map(|x| half::bf16::from_f32(*x)).collect();
            for (elements, is_transposed) in
                [(Slice::F32(&a), true), (Slice::F32(&a), false), (Slice::Bf16(&a_bf16), false)]
            {
                let a = match is_transposed {
                    true => MatrixSlice::row_major(elements, m).transposed(),
                    false => MatrixSlice::row_major(elements, k),
                };
                let b = MatrixSlice::row_major(&b[..], n);
                for epilogue in [Epilogue::Bias(&bias), Epilogue::Accumulate] {
                    let args = GemmArgs { shape, a, b, epilogue };
                    let multiply = |threads: usize| {
                        let bf16_gemm = Bf16Gemm::with_kernel(kernel);
                        let cpu = Cpu { bf16_gemm, ..Cpu::new(threads, Precision::Bf16) };
                        let mut c = values(4, m * n);
                        cpu.gemm(args, ViewMut::from_slice(&mut c));
                        let mut rounded = vec![half::bf16::ONE; m * n];
                        cpu.gemm(args, ViewMut::from_slice(&mut rounded));
                        (c, rounded)
                    };
                    let (one, one_rounded) = multiply(1);
                    for threads in [2, 7, 16] {
                        let (c, rounded) = multiply(threads);
                        assert!(c == one && rounded == one_rounded, "{shape:?}, {threads} threads");
                    }
                }
            }
        }
    }

    #[test]
    fn operands_are_packed_once() {
        // The gradients of GPT-2's output matrix and of a layer's.
        let output = GemmShape { m: 50_257, n: 768, k: 1024 };
        let layer = GemmShape { m: 768, n: 3072, k: 2048 };
        #[cfg(target_arch = "x86_64")]
        {
            let packing = |shape| PackingOfA::for_shape(Kernel::AmxEmulated, shape);
            assert_eq!([output, layer].map(packing), [PackingOfA::PerBlock, PackingOfA::Once]);
        }
        assert_eq!(PackingOfA::for_shape(Kernel::Portable, layer), PackingOfA::PerBlock);
        assert_eq!(PackingOfA::PerBlock.task_grid(output, 16).block(0).1, 0..768);
        assert!(PackingOfA::Once.task_grid(layer, 16).tasks() >= 16);
        assert!(PackingOfA::Once.task_grid(layer, 16).block(0).1.len() < 3072);
    }

    #[test]
    fn rows_that_are_read_in_place_are_split_by_columns_if_they_are_few() {
        let grid = |m| PackingOfA::InPlace.task_grid(GemmShape { m, n: 3072, k: 768 }, 16);
        assert_eq!((grid(2048).tasks(), grid(2048).block(0)), (64, (0..32, 0..3072)));
        assert!(grid(128).tasks() >= 16);
    }
}
