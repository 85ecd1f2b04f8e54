//! bf16 GEMM with f32 accumulators, by the fastest instructions of the CPU.
//!
//! Both operands are packed first: rounded to bf16, two neighbours along `k` in one word, sixteen words in
//! one cache line. All kernels read the same packing, for every layout and dtype of the operands, so
//! transposed operands cost nothing more. AMX can also read rows of A in place if they are already bf16. See
//! `pack` for the layout, `blocking` for the loops, `microkernel` for the inner loop.
//!
//! There are no threads here. Splitting the rows of a GEMM does not change its result.

mod aligned_lines;
mod blocking;
mod convert;
mod epilogue;
mod kernel;
mod matrix;
mod microkernel;
mod pack;
mod pack_portable;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod microkernel_x86;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;

#[cfg(test)]
mod tests;

pub use crate::slice::{Slice, SliceMut};
pub use blocking::gemm_packed;
pub use epilogue::MAX_TILE_ROWS;
pub use kernel::Kernel;
pub use matrix::{MatrixSlice, MatrixSliceMut};
pub use pack::ParallelFor;

pub(crate) use blocking::{OperandA, OutputBlock, gemm_block};
pub(crate) use epilogue::TILE_COLUMNS;
pub(crate) use matrix::OutputPtr;
pub(crate) use pack::{PackedA, reads_in_place};

pub(crate) use convert::{Element, round_to_bf16};

use std::ops::Range;

use aligned_lines::AlignedLines;
use epilogue::Accumulators;

/// Buffers of a GEMM: one per thread, reused by every call.
#[derive(Debug, Default)]
pub struct GemmScratch {
    packed_a: AlignedLines,
    acc: Box<Accumulators>,
    /// f32 sums of a block of the output.
    sums: AlignedLines,
}

/// B, packed once for many GEMMs. Threads may share it.
#[derive(Debug)]
pub struct PackedB {
    kernel: Kernel,
    k: usize,
    n: usize,
    lines: AlignedLines,
}

impl Default for PackedB {
    /// An empty matrix.
    fn default() -> Self {
        Self { kernel: Kernel::Portable, k: 0, n: 0, lines: AlignedLines::default() }
    }
}

impl PackedB {
    /// Packs a matrix of `k` rows and `n` columns for a kernel.
    ///
    /// # Panics
    /// If `b` is too short, or the CPU does not support the kernel.
    pub fn pack(&mut self, kernel: Kernel, k: usize, n: usize, b: MatrixSlice<'_>) {
        self.pack_parallel(kernel, [k, n], b, 1, &|tasks, work| (0..tasks).for_each(work));
    }

    /// As [`Self::pack`], on a number of threads, by `parallel_for`.
    ///
    /// # Panics
    /// As [`Self::pack`].
    pub fn pack_parallel(
        &mut self,
        kernel: Kernel,
        [k, n]: [usize; 2],
        b: MatrixSlice<'_>,
        threads: usize,
        parallel_for: &ParallelFor<'_>,
    ) {
        kernel.assert_available();
        b.assert_in_bounds(k, n);
        (self.kernel, self.k, self.n) = (kernel, k, n);
        pack::pack_b_parallel(kernel, &b, [k, n], &mut self.lines, threads, parallel_for);
    }

    /// A range of rows and the first `n` columns. Further rows up to a multiple of 32 are multiplied by
    /// zeros, so they must be finite.
    ///
    /// # Panics
    /// If they are out of bounds, or the first row is not a multiple of 32.
    pub fn slice(&self, rows: Range<usize>, n: usize) -> PackedBView<'_> {
        let in_bounds = rows.start <= rows.end && rows.end <= self.k && n <= self.n;
        assert!(in_bounds, "rows {rows:?} by {n} are out of bounds for {} by {}", self.k, self.n);
        let aligned = rows.start.is_multiple_of(pack::DEPTH);
        assert!(aligned, "the first of rows {rows:?} is not a multiple of {}", pack::DEPTH);
        PackedBView { packed: self, first: rows.start, k: rows.len(), n }
    }
}

/// Packed B, or some of its rows and columns.
#[derive(Debug, Clone, Copy)]
pub struct PackedBView<'a> {
    packed: &'a PackedB,
    /// First row.
    first: usize,
    k: usize,
    n: usize,
}

impl<'a> From<&'a PackedB> for PackedBView<'a> {
    fn from(packed: &'a PackedB) -> Self {
        Self { packed, first: 0, k: packed.k, n: packed.n }
    }
}
