//! Epilogue of a tile: writes its accumulators to the output.

use super::convert::{Element, Rounding};
use super::matrix::OutputPtr;
use crate::gemm::Epilogue;
use crate::gemm::small_f32::MatrixPtrMut;
use crate::slice::ElementPtr;

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

    /// Loads the first rows and columns of an f32 output. The other accumulators keep their values, which do
    /// not reach the output.
    ///
    /// # Safety
    /// The output must have these rows and columns.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn load(&mut self, rows: usize, columns: usize, c: MatrixPtrMut) {
        for (row, acc) in self.0[..rows].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let c = unsafe { std::slice::from_raw_parts(c.at_row(row).ptr, columns) };
            acc[..columns].copy_from_slice(c);
        }
    }
}

/// Destination of a tile.
pub struct TileOutput<'a> {
    /// Output, from the tile's first element on.
    pub c: OutputPtr,
    /// Columns of the tile that are in the output.
    pub columns: usize,
    /// Epilogue; a bias starts at the tile's first column.
    pub epilogue: Epilogue<'a>,
}

impl TileOutput<'_> {
    /// Where a kernel can store its accumulators directly: an f32 output without a further epilogue.
    #[inline(always)]
    pub fn direct_store(&self, columns: usize) -> Option<MatrixPtrMut> {
        match (self.c.elements, self.epilogue) {
            (ElementPtr::F32(ptr), Epilogue::Store) if self.columns == columns => {
                Some(MatrixPtrMut { ptr, row_stride: self.c.row_stride })
            }
            _ => None,
        }
    }

    /// The output with which a kernel can start its accumulators: their sum is f32.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn accumulated(&self) -> Option<MatrixPtrMut> {
        match (self.c.elements, self.epilogue) {
            (ElementPtr::F32(ptr), Epilogue::Accumulate) => {
                Some(MatrixPtrMut { ptr, row_stride: self.c.row_stride })
            }
            _ => None,
        }
    }
}

/// Writes the first `rows` of the accumulators. Inlined into each kernel, so that it is compiled for its
/// instructions.
///
/// # Safety
/// The CPU must have the instructions of the rounding, and the output these rows and its columns.
#[inline(always)]
pub unsafe fn write_tile<R: Rounding>(acc: &Accumulators, rows: usize, output: TileOutput<'_>) {
    let TileOutput { c: OutputPtr { elements, row_stride }, columns, epilogue } = output;
    // SAFETY: the caller's promise.
    unsafe {
        match elements {
            ElementPtr::F32(c) => write_rows::<R, _>(acc, rows, c, row_stride, columns, epilogue),
            ElementPtr::Bf16(c) => write_rows::<R, _>(acc, rows, c, row_stride, columns, epilogue),
        }
    }
}

#[inline(always)]
unsafe fn write_rows<R: Rounding, T: Element>(
    acc: &Accumulators,
    rows: usize,
    c: *mut T,
    row_stride: usize,
    columns: usize,
    epilogue: Epilogue<'_>,
) {
    for (row, acc) in acc.0[..rows].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let c = std::slice::from_raw_parts_mut(c.add(row * row_stride), columns);
            match epilogue {
                Epilogue::Store => write_row::<R, _>(c, acc, acc, |_, acc, _| acc),
                Epilogue::Bias(bias) => {
                    write_row::<R, _>(c, acc, &bias[..columns], |_, acc, bias| acc + bias);
                }
                Epilogue::Accumulate => write_row::<R, _>(c, acc, acc, |c, acc, _| c + acc),
            }
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
