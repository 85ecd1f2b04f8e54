//! Micro-kernel: one tile of the output with its accumulators in registers, two elements of `k` per step.

use super::aligned_lines::{CacheLine, WORDS};
use super::convert::{PortableRounding, Rounding};
use super::epilogue::{Accumulators, TileOutput, write_tile};
use crate::gemm::small_f32::MatrixPtrMut;

/// Operands of a tile.
// Only x86 has kernels that compute blocks.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
pub struct GemmTile {
    /// Rows of the output.
    pub rows: usize,
    /// Panels of sixteen columns.
    pub panels: usize,
    /// Rows of A.
    pub a: PanelA,
    /// First line of B: sixteen columns of one pair of `k`, followed by the next pairs.
    pub b: *const CacheLine,
    /// Lines between panels of B.
    pub b_stride: usize,
    /// Pairs of `k`.
    pub pairs: usize,
    /// A full tile of sums with which the accumulators start instead of zeros. Only kernels that compute
    /// blocks have them.
    pub sums: Option<MatrixPtrMut>,
    /// Lines of B that other tiles use next, as many as half of the pairs. Only a hint: any address.
    pub prefetch: *const CacheLine,
}

/// Rows of A, packed or in place.
#[derive(Clone, Copy)]
pub struct PanelA {
    /// First line of the first row: sixteen pairs of `k`.
    pub start: *const CacheLine,
    /// Bytes between rows. Kernels that read A in place accept any; others need adjacent rows.
    pub row_bytes: usize,
    /// Bytes between groups of sixteen pairs.
    pub step_bytes: usize,
}

impl PanelA {
    /// The panel from a row on.
    pub fn at_row(self, row: usize) -> Self {
        Self { start: self.start.wrapping_byte_add(row * self.row_bytes), ..self }
    }

    /// The panel from a group of sixteen pairs on.
    pub fn at_depth(self, group: usize) -> Self {
        Self { start: self.start.wrapping_byte_add(group * self.step_bytes), ..self }
    }
}

/// Computes a tile and writes it to the output.
///
/// # Safety
/// The CPU must support the kernel, the tile must not exceed the kernel's, and both operands must be valid
/// and packed, with padding to groups of sixteen pairs.
pub type MicroKernelFn = unsafe fn(&GemmTile, &mut Accumulators, TileOutput<'_>);

/// A micro-kernel of vectors of sixteen columns.
///
/// # Safety
/// All methods need the CPU to have the instructions.
pub trait MicroKernel {
    /// Rows of the largest tile whose accumulators fit into registers.
    const ROWS: usize;
    /// Panels of the largest tile.
    const PANELS: usize;
    /// Lines of a row of A per sixteen pairs: two if A is widened to f32.
    const A_LINES: usize;
    /// Rounding of bf16 outputs.
    type Rounding: Rounding;
    /// Sixteen accumulators.
    type Acc: Copy;
    /// A broadcast pair of A.
    type A: Copy;
    /// A pair of B for each column.
    type B: Copy;

    /// Zeros.
    unsafe fn zero() -> Self::Acc;
    /// Broadcasts the pair at a word.
    unsafe fn broadcast_a(word: *const u32) -> Self::A;
    /// Loads the pairs of a line.
    unsafe fn load_b(line: *const CacheLine) -> Self::B;
    /// Accumulates the dot products of pairs.
    unsafe fn dot(acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
    /// Stores sixteen accumulators.
    unsafe fn store(acc: Self::Acc, to: *mut f32);
}

/// A tile of `R` rows and `V` panels.
#[inline(always)]
unsafe fn multiply<M: MicroKernel, const R: usize, const V: usize>(
    tile: &GemmTile,
    to: MatrixPtrMut,
) {
    // SAFETY: the caller promises the instructions, operands of as many lines as there are pairs, and an
    // output of this size.
    unsafe {
        let mut acc = [[M::zero(); V]; R];
        let (mut a, mut b) = (tile.a.start, tile.b);
        let mut pairs = tile.pairs;
        while pairs > 0 {
            let now = pairs.min(WORDS);
            for word in 0..now {
                let mut columns = [M::load_b(b); V];
                for (v, columns) in columns.iter_mut().enumerate().skip(1) {
                    *columns = M::load_b(b.add(v * tile.b_stride));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let row = M::broadcast_a(a.add(r * M::A_LINES).cast::<u32>().add(word));
                    for v in 0..V {
                        acc[v] = M::dot(acc[v], row, columns[v]);
                    }
                }
                b = b.add(1);
            }
            a = a.wrapping_byte_add(tile.a.step_bytes);
            pairs -= now;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                M::store(*acc, to.ptr.add(r * to.row_stride + v * WORDS));
            }
        }
    }
}

/// Dispatches on the number of rows, so that each is compiled separately.
#[inline(always)]
unsafe fn multiply_rows<M: MicroKernel, const V: usize>(tile: &GemmTile, to: MatrixPtrMut) {
    macro_rules! dispatch {
        ($($rows:literal)*) => {
            match tile.rows {
                // SAFETY: the caller's promise.
                $($rows if $rows <= M::ROWS => unsafe { multiply::<M, $rows, V>(tile, to) },)*
                rows => unreachable!("no micro-kernel has {rows} rows"),
            }
        };
    }
    dispatch!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// A [`MicroKernelFn`].
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn run<M: MicroKernel>(tile: &GemmTile, acc: &mut Accumulators, output: TileOutput<'_>) {
    let direct = output.direct_store(tile.panels * WORDS);
    let to = direct.unwrap_or_else(|| acc.as_mut_ptr());
    // SAFETY: the caller's promise.
    unsafe {
        if tile.panels == 2 && M::PANELS == 2 {
            multiply_rows::<M, 2>(tile, to);
        } else {
            multiply_rows::<M, 1>(tile, to);
        }
    }
    if direct.is_none() {
        // SAFETY: the caller's promise.
        unsafe { write_tile::<M::Rounding>(acc, tile.rows, output) };
    }
}

/// Scalar loops for any CPU.
pub struct Portable;

impl MicroKernel for Portable {
    const ROWS: usize = 2;
    const PANELS: usize = 1;
    const A_LINES: usize = 2;
    type Rounding = PortableRounding;
    type Acc = [f32; WORDS];
    type A = [f32; 2];
    type B = [u32; WORDS];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        [0.0; WORDS]
    }

    #[inline(always)]
    unsafe fn broadcast_a(word: *const u32) -> Self::A {
        // SAFETY: the caller's promise; the second word is one line after the first.
        unsafe { [f32::from_bits(*word), f32::from_bits(*word.add(WORDS))] }
    }

    #[inline(always)]
    unsafe fn load_b(line: *const CacheLine) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe { (*line).0 }
    }

    #[inline(always)]
    unsafe fn dot(mut acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc {
        for (acc, pair) in acc.iter_mut().zip(b) {
            *acc += a[0] * f32::from_bits(pair << 16);
            *acc += a[1] * f32::from_bits(pair & 0xffff_0000);
        }
        acc
    }

    #[inline(always)]
    unsafe fn store(acc: Self::Acc, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; WORDS]>().write_unaligned(acc) }
    }
}
