//! Epilogue of a tile: writes its accumulators to the output.

use super::convert::{Element, Rounding};
use crate::gemm::Epilogue;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut};
use crate::slice::{DisjointMut, SliceMut};

/// Columns of the largest tile.
pub const TILE_COLUMNS: usize = 32;
/// Rows of the largest tile.
pub const MAX_TILE_ROWS: usize = 32;

/// Accumulators of a tile, row-major.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Accumulators([[f32; TILE_COLUMNS]; MAX_TILE_ROWS]);

impl Accumulators {
    /// A pointer to them.
    pub fn as_mut_ptr(&mut self) -> MatrixPtrMut {
        MatrixPtrMut { ptr: self.0.as_flattened_mut().as_mut_ptr(), row_stride: TILE_COLUMNS }
    }

    /// Loads the rows of an f32 output.
    #[inline(always)]
    unsafe fn load_output(&mut self, output: &TileOutput<'_>, rows: usize) {
        for (row, acc) in self.0[..rows].iter_mut().enumerate() {
            let start = output.first + row * output.row_stride;
            // SAFETY: the caller promises exclusive access.
            let row = unsafe { output.elements.slice_f32(start..start + output.columns) };
            acc[..row.len()].copy_from_slice(row);
        }
    }
}

/// Where the accumulators of a tile come from and where they are stored.
pub struct TileStore {
    /// Initial values; zeros if there are none.
    pub init: Option<MatrixPtr>,
    pub to: MatrixPtrMut,
    /// Whether `to` is the output; otherwise it is written by [`write_tile`].
    pub is_direct: bool,
}

impl TileStore {
    /// Stores to `direct` if possible, else to `acc`. Sums continue from `init` or from an f32 output, so that
    /// how a GEMM is split does not change the order of additions.
    ///
    /// # Safety
    /// No other thread may access the tile.
    #[inline(always)]
    pub unsafe fn new(
        direct: Option<MatrixPtrMut>,
        init: Option<MatrixPtr>,
        rows: usize,
        acc: &mut Accumulators,
        output: &mut TileOutput<'_>,
    ) -> Self {
        let adds = output.accumulates() && output.elements.is_f32();
        if let (Some(to), None) = (direct, init) {
            return Self { init: adds.then(|| to.as_const()), to, is_direct: true };
        }
        let to = acc.as_mut_ptr();
        if init.is_some() || !adds {
            return Self { init, to, is_direct: false };
        }
        // SAFETY: the caller's promise.
        unsafe { acc.load_output(output, rows) };
        output.epilogue = Epilogue::Store;
        Self { init: Some(to.as_const()), to, is_direct: false }
    }
}

/// Destination of a tile.
pub struct TileOutput<'a> {
    /// Output, in which other threads write other tiles.
    pub elements: DisjointMut<'a>,
    /// Index of the tile's first element.
    pub first: usize,
    /// Stride between rows.
    pub row_stride: usize,
    /// Columns of the tile that are in the output.
    pub columns: usize,
    /// Epilogue; a bias starts at the tile's first column.
    pub epilogue: Epilogue<'a>,
}

impl TileOutput<'_> {
    /// Where a kernel can store its accumulators directly: an f32 output without a bias.
    #[inline(always)]
    pub fn direct_store(&self, rows: usize, columns: usize) -> Option<MatrixPtrMut> {
        let is_plain = !matches!(self.epilogue, Epilogue::Bias(_));
        if !(is_plain && self.elements.is_f32() && self.columns == columns) {
            return None;
        }
        let last = self.first + (rows - 1) * self.row_stride + columns - 1;
        assert!(last < self.elements.len(), "the tile is out of bounds");
        let ptr = self.elements.ptr_f32(self.first);
        Some(MatrixPtrMut { ptr, row_stride: self.row_stride })
    }

    /// Whether the output is added to.
    pub fn accumulates(&self) -> bool {
        matches!(self.epilogue, Epilogue::Accumulate)
    }
}

/// Writes the first `rows` of the accumulators. Inlined into each kernel, so that it is compiled for its
/// instructions.
///
/// # Safety
/// The CPU must have the instructions of the rounding, and no other thread may access the tile.
#[inline(always)]
pub unsafe fn write_tile<R: Rounding>(acc: &Accumulators, rows: usize, output: TileOutput<'_>) {
    let TileOutput { elements, first, row_stride, columns, epilogue } = output;
    for (row, acc) in acc.0[..rows].iter().enumerate() {
        let start = first + row * row_stride;
        // SAFETY: the caller's promise.
        unsafe {
            match elements.slice(start..start + columns) {
                SliceMut::F32(c) => write_epilogue::<R, _>(acc, c, epilogue),
                SliceMut::Bf16(c) => write_epilogue::<R, _>(acc, c, epilogue),
            }
        }
    }
}

#[inline(always)]
unsafe fn write_epilogue<R: Rounding, T: Element>(
    acc: &[f32; TILE_COLUMNS],
    c: &mut [T],
    epilogue: Epilogue<'_>,
) {
    let columns = c.len();
    // SAFETY: the caller's promise.
    unsafe {
        match epilogue {
            Epilogue::Store => write_row::<R, _>(c, acc, acc, |_, acc, _| acc),
            Epilogue::Bias(bias) => {
                write_row::<R, _>(c, acc, &bias[..columns], |_, acc, bias| acc + bias);
            }
            Epilogue::Accumulate => write_row::<R, _>(c, acc, acc, |c, acc, _| c + acc),
        }
    }
}

/// `c = f(c, acc, bias)`, with a constant length for full rows.
#[inline(always)]
unsafe fn write_row<R: Rounding, T: Element>(
    c: &mut [T],
    acc: &[f32],
    bias: &[f32],
    f: impl Fn(f32, f32, f32) -> f32,
) {
    if let (Ok(c), Some(acc), Some(bias)) = (
        <&mut [T; TILE_COLUMNS]>::try_from(&mut *c),
        acc.first_chunk::<TILE_COLUMNS>(),
        bias.first_chunk::<TILE_COLUMNS>(),
    ) {
        let mut row = [0.0; TILE_COLUMNS];
        for i in 0..TILE_COLUMNS {
            row[i] = f(c[i].to_f32(), acc[i], bias[i]);
        }
        // SAFETY: the caller's promise.
        unsafe { T::store_row::<R>(&row, c) };
    } else {
        for ((c, acc), bias) in c.iter_mut().zip(acc).zip(bias) {
            *c = T::from_f32(f(c.to_f32(), *acc, *bias));
        }
    }
}
