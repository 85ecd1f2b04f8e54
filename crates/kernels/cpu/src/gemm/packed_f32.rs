//! Large f32 GEMMs. All threads pack a chunk of B into panels as wide as the micro-kernel; then they multiply
//! blocks of the output.

use std::ops::Range;

use crate::Cpu;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS, gemm_inline};
use crate::gemm::task_grid::{BlockSize, TaskGrid};
use crate::gemm::{Epilogue, GemmShape, MIN_WORK_PER_THREAD};
use crate::isa::{Isa, kernel};
use crate::lanes::{Lanes, WIDTH};
use crate::slice::DisjointMut;

/// Columns of a panel.
const PANEL: usize = 4 * WIDTH;

/// Maximum elements of a strip: it and a panel fit into L2.
const MAX_STRIP_ELEMENTS: usize = 72 * 1024;

/// Maximum rows of a strip: blocks that fill cache lines.
const MAX_STRIP_ROWS: usize = 16 * ROWS;

/// Rows of a panel that are prefetched ahead, from L2.
const PREFETCH_ROWS: usize = 8;

/// A tile of the output.
const TILE: BlockSize = BlockSize { rows: ROWS, columns: PANEL };

/// Blocks of the output whose operands fit into L2.
const MAX_BLOCK: BlockSize = BlockSize { rows: 4 * MAX_STRIP_ROWS, columns: 8 * PANEL };

/// Elements of B that are packed at once: they are multiplied while they are in L3, and thousands of depth
/// blocks of a large vocabulary need few fork-joins.
const MAX_CHUNK_ELEMENTS: usize = 4 << 20;

/// Columns of a chunk before its depth is split.
const MIN_CHUNK_COLUMNS: usize = 32 * PANEL;

/// With fewer rows, packing does not pay off.
const MIN_ROWS: usize = 2 * ROWS;

/// Whether [`Cpu::gemm_packed`] is faster than the `gemm` crate.
pub fn is_faster(isa: Isa, shape: GemmShape) -> bool {
    isa != Isa::PORTABLE && shape.m >= MIN_ROWS
}

impl Cpu {
    /// GEMM with packed panels.
    ///
    /// # Safety
    /// `a` and `b` must have the given shape.
    pub(crate) unsafe fn gemm_packed(
        &self,
        shape: GemmShape,
        a: MatrixPtr,
        b: MatrixPtr,
        c: &mut [f32],
        epilogue: Epilogue<'_>,
    ) {
        // Depth blocks of nearly equal length.
        let kc = shape.k.div_ceil(shape.k.div_ceil(self.max_kc)).max(1);
        let chunk = PackedChunk::max(shape, kc);
        let mut packed = self.scratch(chunk.columns.div_ceil(PANEL) * PANEL * chunk.depth);
        let c = DisjointMut::new(c);
        for column in (0..shape.n).step_by(chunk.columns) {
            for first in (0..shape.k).step_by(chunk.depth) {
                let part = GemmShape {
                    n: (shape.n - column).min(chunk.columns),
                    k: (shape.k - first).min(chunk.depth),
                    ..shape
                };
                let b = b.at_row(first).at_column(column);
                let epilogue = if first == 0 { epilogue } else { Epilogue::Accumulate };
                // SAFETY: the caller promises the shape of `b`.
                let packed = unsafe { self.pack_chunk(part, kc, b, &mut packed) };
                let gemm = PackedGemm {
                    shape: part,
                    kc,
                    a: a.at_column(first),
                    packed,
                    c,
                    c_stride: shape.n,
                    first_column: column,
                    epilogue: epilogue.at_column(column),
                };
                // SAFETY: the caller promises the shape of `a`; `c` is borrowed mutably.
                unsafe { self.multiply_packed(&gemm) };
            }
        }
    }

    /// Packs a chunk of B in depth blocks of `kc`, each a sequence of panels.
    ///
    /// # Safety
    /// `b` must have the given shape.
    unsafe fn pack_chunk<'a>(
        &self,
        shape: GemmShape,
        kc: usize,
        b: MatrixPtr,
        packed: &'a mut [f32],
    ) -> &'a [f32] {
        let _timer = self.kernel_times.timer(|| format!("pack {} by {} f32", shape.k, shape.n));
        let panels = shape.n.div_ceil(PANEL);
        let packed = &mut packed[..panels * PANEL * shape.k];
        let to = DisjointMut::new(&mut *packed);
        self.pool.run(panels * shape.k.div_ceil(kc), |unit| {
            let (depth, panel) = (unit / panels * kc, unit % panels);
            let block = GemmShape { k: (shape.k - depth).min(kc), ..shape };
            let start = panels * PANEL * depth + panel * PANEL * block.k;
            // SAFETY: units are disjoint; the caller promises the shape of `b`.
            unsafe {
                let to = to.slice_f32(start..start + PANEL * block.k);
                pack_b(self.isa, block, b.at_row(depth), panel, to);
            }
        });
        packed
    }

    /// Multiplies a packed chunk, block by block of the output.
    ///
    /// # Safety
    /// `gemm.a` must have the given shape, and `gemm.c` must not be accessed otherwise.
    unsafe fn multiply_packed(&self, gemm: &PackedGemm<'_>) {
        let threads = self.pool.tasks(gemm.shape.work(), MIN_WORK_PER_THREAD);
        let grid = TaskGrid::new(gemm.shape, TILE, MAX_BLOCK, threads);
        let strip_rows = strip_rows(gemm.kc);
        self.pool.run(grid.tasks(), |task| {
            let (rows, columns) = grid.block(task);
            let mut strip = self.scratch(strip_rows * gemm.kc);
            for depth in (0..gemm.shape.k).step_by(gemm.kc) {
                // SAFETY: the caller promises the shape of `a`; blocks are disjoint.
                unsafe {
                    let (rows, columns) = (rows.clone(), columns.clone());
                    multiply_block(self.isa, gemm, depth, rows, columns, strip_rows, &mut strip);
                }
            }
        });
    }
}

/// Columns and depth of B that are packed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedChunk {
    columns: usize,
    depth: usize,
}

impl PackedChunk {
    /// Of at most [`MAX_CHUNK_ELEMENTS`], but at least one depth block of one panel. The depth is split only
    /// if a chunk would have few columns: every further part adds to the output in memory.
    fn max(shape: GemmShape, kc: usize) -> Self {
        let min_columns = shape.n.min(MIN_CHUNK_COLUMNS).next_multiple_of(PANEL);
        let depth = (MAX_CHUNK_ELEMENTS / min_columns / kc).max(1) * kc;
        let depth = depth.min(shape.k.next_multiple_of(kc));
        let columns = (MAX_CHUNK_ELEMENTS / depth / PANEL).max(1) * PANEL;
        Self { columns: columns.min(shape.n.next_multiple_of(PANEL)), depth }
    }
}

/// Rows of A that are multiplied by a panel while it is in the cache.
fn strip_rows(depth: usize) -> usize {
    (MAX_STRIP_ELEMENTS / depth.max(1) / ROWS * ROWS).clamp(ROWS, MAX_STRIP_ROWS)
}

/// A chunk of columns and depth of a GEMM, with packed B.
struct PackedGemm<'a> {
    shape: GemmShape,
    /// Depth of a block.
    kc: usize,
    a: MatrixPtr,
    packed: &'a [f32],
    c: DisjointMut<'a>,
    /// Columns of `c`, and the first of the chunk.
    c_stride: usize,
    first_column: usize,
    epilogue: Epilogue<'a>,
}

kernel! {
    /// Packs panels of B from panel `first` on: per depth a row of columns, padded with zeros.
    ///
    /// # Safety
    /// `b` must have the given shape.
    unsafe fn pack_b<V>(shape: GemmShape, b: MatrixPtr, first: usize, panels: &mut [f32]) {
        let GemmShape { n, k, .. } = shape;
        for (index, panel) in panels.chunks_exact_mut(PANEL * k).enumerate() {
            let columns = (first + index) * PANEL..n.min((first + index + 1) * PANEL);
            let b = b.at_column(columns.start);
            // SAFETY: the caller's promise.
            unsafe {
                if b.column_stride == 1 {
                    copy_panel::<V>(columns.len(), b, panel);
                } else {
                    transpose_panel::<V>(columns.len(), k, b, panel);
                }
            }
        }
    }
}

/// Packs a panel of a row-major matrix.
#[inline(always)]
unsafe fn copy_panel<V: Lanes>(columns: usize, b: MatrixPtr, panel: &mut [f32]) {
    for (row, to) in panel.chunks_exact_mut(PANEL).enumerate() {
        let from = b.at_row(row).ptr;
        // SAFETY: the caller promises the row; a row of the panel has PANEL elements.
        unsafe {
            if columns == PANEL {
                for at in (0..PANEL).step_by(WIDTH) {
                    V::load(from.add(at)).store(to.as_mut_ptr().add(at));
                }
            } else {
                let from = std::slice::from_raw_parts(from, columns);
                to[..columns].copy_from_slice(from);
                to[columns..].fill(0.0);
            }
        }
    }
}

/// Packs a panel of a column-major matrix, in transposed squares of sixteen.
#[inline(always)]
unsafe fn transpose_panel<V: Lanes>(columns: usize, k: usize, b: MatrixPtr, panel: &mut [f32]) {
    let vectorised = if b.row_stride == 1 { k / WIDTH * WIDTH } else { 0 };
    for first in (0..PANEL).step_by(WIDTH) {
        for depth in (0..vectorised).step_by(WIDTH) {
            let mut square = [V::splat(0.0); WIDTH];
            for (at, lanes) in square.iter_mut().enumerate() {
                if first + at < columns {
                    // SAFETY: the caller promises the column.
                    *lanes = unsafe { V::load(b.at_column(first + at).ptr.add(depth)) };
                }
            }
            for (at, lanes) in V::transpose(square).into_iter().enumerate() {
                let to = &mut panel[(depth + at) * PANEL + first..][..WIDTH];
                // SAFETY: there are sixteen.
                unsafe { lanes.store(to.as_mut_ptr()) };
            }
        }
        for depth in vectorised..k {
            for at in first..first + WIDTH {
                let from = b.at_column(at).at_row(depth).ptr;
                // SAFETY: the caller promises the column.
                panel[depth * PANEL + at] = if at < columns { unsafe { *from } } else { 0.0 };
            }
        }
    }
}

/// The operands of one depth block of a block of the output.
struct DepthBlock<'a> {
    gemm: &'a PackedGemm<'a>,
    k: usize,
    a: MatrixPtr,
    /// The panels of all columns of the chunk.
    panels: &'a [f32],
    epilogue: Epilogue<'a>,
}

impl<'a> DepthBlock<'a> {
    fn new(gemm: &'a PackedGemm<'a>, depth: usize) -> Self {
        let k = (gemm.shape.k - depth).min(gemm.kc);
        let panel_elements = gemm.shape.n.div_ceil(PANEL) * PANEL;
        let panels = &gemm.packed[panel_elements * depth..][..panel_elements * k];
        let epilogue = if depth == 0 { gemm.epilogue } else { Epilogue::Accumulate };
        Self { gemm, k, a: gemm.a.at_column(depth), panels, epilogue }
    }
}

kernel! {
    /// Multiplies a depth block of some rows of A by some panels, a strip of rows at a time.
    ///
    /// # Safety
    /// `gemm.a` must have the given shape, and no other thread may access these rows and columns of `gemm.c`.
    unsafe fn multiply_block<V>(
        gemm: &PackedGemm<'_>, depth: usize, all: Range<usize>, columns: Range<usize>,
        strip_rows: usize, strip: &mut [f32],
    ) {
        let block = DepthBlock::new(gemm, depth);
        let pack_a = block.a.column_stride != 1;
        for start in all.clone().step_by(strip_rows) {
            let rows = (all.end - start).min(strip_rows);
            if pack_a {
                // Strided elements are packed because every panel reads them.
                // SAFETY: the caller's promise.
                unsafe { pack_strip(rows, block.k, block.a.at_row(start), strip) };
            }
            for column in columns.clone().step_by(PANEL) {
                for at in (0..rows).step_by(ROWS) {
                    let a = match pack_a {
                        true => {
                            let ptr = strip[at * block.k..].as_ptr();
                            MatrixPtr { ptr, row_stride: 1, column_stride: ROWS }
                        }
                        false => block.a.at_row(start + at),
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        let rows = (rows - at).min(ROWS);
                        multiply_panel::<V>(&block, start + at, rows, column, a);
                    }
                }
            }
        }
    }
}

/// Packs a strip of A: blocks of `ROWS` rows, each column-major.
#[inline(always)]
unsafe fn pack_strip(rows: usize, k: usize, a: MatrixPtr, strip: &mut [f32]) {
    let contiguous = if a.row_stride == 1 { rows / ROWS } else { 0 };
    for depth in 0..k {
        let a = a.at_column(depth);
        for block in 0..contiguous {
            // SAFETY: the caller promises these rows.
            let column = unsafe { &*a.at_row(block * ROWS).ptr.cast::<[f32; ROWS]>() };
            strip[(block * k + depth) * ROWS..][..ROWS].copy_from_slice(column);
        }
        for row in contiguous * ROWS..rows {
            let index = (row / ROWS * k + depth) * ROWS + row % ROWS;
            // SAFETY: as above.
            strip[index] = unsafe { *a.at_row(row).ptr };
        }
    }
}

/// Multiplies a block of rows by one panel.
#[inline(always)]
unsafe fn multiply_panel<V: Lanes>(
    block: &DepthBlock<'_>,
    row: usize,
    rows: usize,
    column: usize,
    a: MatrixPtr,
) {
    let DepthBlock { gemm, k, epilogue, .. } = *block;
    let (n, stride) = (gemm.shape.n, gemm.c_stride);
    let panel = &block.panels[column * k..][..PANEL * k];
    let b = MatrixPtr { ptr: panel.as_ptr(), row_stride: PANEL, column_stride: 1 };
    let columns = PANEL.min(n - column);
    let tile = GemmShape { m: rows, n: columns, k };
    let ptr = gemm.c.ptr_f32(row * stride + gemm.first_column + column);
    let c = MatrixPtrMut { ptr, row_stride: stride };
    if columns.is_multiple_of(WIDTH) {
        let init = match epilogue {
            Epilogue::Store => None,
            Epilogue::Accumulate => Some(c.as_const()),
            Epilogue::Bias(bias) => {
                Some(MatrixPtr { ptr: bias[column..].as_ptr(), row_stride: 0, column_stride: 1 })
            }
        };
        // SAFETY: the caller's promise; the columns are a multiple of WIDTH.
        return unsafe { gemm_inline::<V, PREFETCH_ROWS>(tile, a, b, c, init) };
    }
    let mut acc = [0.0; ROWS * PANEL];
    let to = MatrixPtrMut { ptr: acc.as_mut_ptr(), row_stride: PANEL };
    // SAFETY: rows of `acc` have PANEL elements.
    unsafe { gemm_inline::<V, PREFETCH_ROWS>(tile, a, b, to, None) };
    for (at, acc) in acc.chunks_exact(PANEL).enumerate().take(rows) {
        // SAFETY: the caller promises the columns and exclusive access to the rows.
        let c = unsafe { std::slice::from_raw_parts_mut(c.at_row(at).ptr, columns) };
        for (at, (c, sum)) in c.iter_mut().zip(acc).enumerate() {
            *c = match epilogue {
                Epilogue::Store => *sum,
                Epilogue::Accumulate => *c + sum,
                Epilogue::Bias(bias) => bias[column + at] + sum,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::bf16::MatrixSlice;
    use regatta_device::precision::Precision;

    #[test]
    fn chunks_are_bounded_and_split_the_depth_last() {
        let chunk = |n, k| PackedChunk::max(GemmShape { m: 1024, n, k }, 384);
        let all = PackedChunk { columns: 3072, depth: 768 };
        assert_eq!(chunk(3072, 768), all);
        // GPT-2's output matrix: all of the depth for some columns, or some of the depth for all columns.
        let (logits, inputs) = (chunk(50_257, 768), chunk(768, 50_257));
        assert_eq!((logits.depth, logits.columns), (768, 5440));
        assert_eq!((inputs.depth, inputs.columns), (14 * 384, 768));
        for chunk in [logits, inputs, chunk(1 << 20, 1 << 20)] {
            assert!(chunk.columns * chunk.depth <= MAX_CHUNK_ELEMENTS, "{chunk:?}");
        }
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let element = |i: usize| (i * 7919 % 6421) as f32 / 6421.0 - 0.5;
        for [m, n, k] in [[70, 800, 90], [800, 70, 90], [20, 70, 900]] {
            let shape = GemmShape { m, n, k };
            let (a, b): (Vec<f32>, Vec<f32>) =
                ((0..m * k).map(element).collect(), (0..k * n).map(element).collect());
            let multiply = |threads: usize| {
                let cpu = Cpu { max_kc: 40, ..Cpu::new(threads, Precision::F32) };
                let left = MatrixSlice::row_major(&a[..], m).transposed().as_ptr();
                let right = MatrixSlice::row_major(&b[..], n).as_ptr();
                let mut c: Vec<f32> = (0..m * n).map(element).collect();
                // SAFETY: the matrices have this shape.
                unsafe { cpu.gemm_packed(shape, left, right, &mut c, Epilogue::Accumulate) };
                c
            };
            let one = multiply(1);
            for threads in [2, 5, 16] {
                assert!(multiply(threads) == one, "{shape:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn depth_blocking_gives_exact_sums() {
        let shape = GemmShape { m: 50, n: 70, k: 100 };
        let GemmShape { m, n, k } = shape;
        let element = |i: usize| (i * 7919 % 64) as f32 / 16.0 - 2.0;
        let elements = |count: usize| (0..count).map(element).collect::<Vec<f32>>();
        let (a, b, bias) = (elements(m * k), elements(k * n), elements(n));
        let sum = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>();
        for isa in Isa::all().into_iter().filter(|isa| is_faster(*isa, shape)) {
            for max_kc in [16, 33, 100, 1536] {
                let cpu = Cpu { max_kc, ..Cpu::with_isa(2, Precision::F32, isa) };
                let left = MatrixSlice::row_major(&a[..], k).as_ptr();
                let right = MatrixSlice::row_major(&b[..], n).as_ptr();
                let mut c = vec![f32::NAN; m * n];
                // SAFETY: the matrices have this shape.
                unsafe { cpu.gemm_packed(shape, left, right, &mut c, Epilogue::Bias(&bias)) };
                // These sums are exact in f32.
                for (at, found) in c.into_iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    assert_eq!(found, sum(i, j) + bias[j], "{isa:?}, kc {max_kc}: {i}, {j}");
                }
            }
        }
    }
}
