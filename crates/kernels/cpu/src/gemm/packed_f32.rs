//! Large f32 GEMMs. All threads pack B into panels as wide as the micro-kernel; then each thread multiplies
//! some rows of A by them.

use std::ops::Range;

use crate::Cpu;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS, gemm_inline};
use crate::gemm::{Epilogue, GemmShape, MIN_WORK_PER_THREAD};
use crate::isa::{Isa, kernel};
use crate::lanes::{Lanes, WIDTH};
use crate::slice::DisjointMut;
use crate::thread_pool::task_range;

/// Columns of a panel.
const PANEL: usize = 4 * WIDTH;

/// Maximum elements of a strip: it and a panel fit into L2.
const MAX_STRIP_ELEMENTS: usize = 72 * 1024;

/// Maximum rows of a strip: blocks that fill cache lines.
const MAX_STRIP_ROWS: usize = 16 * ROWS;

/// Rows of a panel that are prefetched ahead, from L2.
const PREFETCH_ROWS: usize = 8;

/// Multiply-adds of a task that takes a few tens of microseconds.
const BALANCED_WORK: usize = 2 << 20;

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
        let GemmShape { m, n, k } = shape;
        let panels = n.div_ceil(PANEL);
        // Blocks of nearly equal depth.
        let kc = k.div_ceil(k.div_ceil(self.max_kc));
        let mut packed = self.scratch(panels * PANEL * kc);
        let c = DisjointMut::new(c);
        for first in (0..k).step_by(kc) {
            let shape = GemmShape { k: (k - first).min(kc), ..shape };
            let (a, b) = (a.at_column(first), b.at_row(first));
            let epilogue = if first == 0 { epilogue } else { Epilogue::Accumulate };
            let panel_len = PANEL * shape.k;
            let to = DisjointMut::new(&mut packed[..panels * panel_len]);
            self.pool.run_ranges(panels, 1, 1, |range| {
                // SAFETY: ranges are disjoint; the caller promises the shape of `b`.
                unsafe {
                    let to = to.slice_f32(range.start * panel_len..range.end * panel_len);
                    pack_b(self.isa, shape, b, range.start, to);
                }
            });
            let gemm = PackedGemm { shape, a, packed: &packed[..panels * panel_len], c, epilogue };
            let tasks = self.pool.balanced_tasks(shape.work(), MIN_WORK_PER_THREAD, BALANCED_WORK);
            let strip_rows = strip_rows(shape.k);
            self.pool.run(tasks, |task| {
                let rows = task_range(m, tasks, task, ROWS);
                let mut strip = self.scratch(strip_rows * shape.k);
                // SAFETY: the caller promises the shape of `a`; tasks have disjoint rows of `c`.
                unsafe { multiply_rows(self.isa, &gemm, rows, strip_rows, &mut strip) };
            });
        }
    }
}

/// Rows of A that are multiplied by a panel while it is in the cache.
fn strip_rows(depth: usize) -> usize {
    (MAX_STRIP_ELEMENTS / depth.max(1) / ROWS * ROWS).clamp(ROWS, MAX_STRIP_ROWS)
}

/// One depth block of a GEMM, with packed B.
struct PackedGemm<'a> {
    shape: GemmShape,
    a: MatrixPtr,
    packed: &'a [f32],
    c: DisjointMut<'a>,
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

kernel! {
    /// Multiplies some rows of A by all panels, a strip of rows at a time.
    ///
    /// # Safety
    /// `gemm.a` must have the given shape, and no other thread may access these rows of `gemm.c`.
    unsafe fn multiply_rows<V>(
        gemm: &PackedGemm<'_>, all: Range<usize>, strip_rows: usize, strip: &mut [f32],
    ) {
        let GemmShape { n, k, .. } = gemm.shape;
        let pack_a = gemm.a.column_stride != 1;
        for start in all.clone().step_by(strip_rows) {
            let rows = (all.end - start).min(strip_rows);
            if pack_a {
                // Strided elements are packed because every panel reads them.
                // SAFETY: the caller's promise.
                unsafe { pack_strip(rows, k, gemm.a.at_row(start), strip) };
            }
            for column in (0..n).step_by(PANEL) {
                for at in (0..rows).step_by(ROWS) {
                    let a = match pack_a {
                        true => {
                            let ptr = strip[at * k..].as_ptr();
                            MatrixPtr { ptr, row_stride: 1, column_stride: ROWS }
                        }
                        false => gemm.a.at_row(start + at),
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        let rows = (rows - at).min(ROWS);
                        multiply_panel::<V>(gemm, start + at, rows, column, a);
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
    gemm: &PackedGemm<'_>,
    row: usize,
    rows: usize,
    column: usize,
    a: MatrixPtr,
) {
    let GemmShape { n, k, .. } = gemm.shape;
    let panel = &gemm.packed[column * k..][..PANEL * k];
    let b = MatrixPtr { ptr: panel.as_ptr(), row_stride: PANEL, column_stride: 1 };
    let columns = PANEL.min(n - column);
    let tile = GemmShape { m: rows, n: columns, k };
    let c = MatrixPtrMut { ptr: gemm.c.ptr_f32(row * n + column), row_stride: n };
    if columns.is_multiple_of(WIDTH) {
        let init = match gemm.epilogue {
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
            *c = match gemm.epilogue {
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
