//! Small matrix products of numbers that are in the cache: no packing, any strides.

use crate::lanes::{Lanes, WIDTH};
use crate::level::{Level, kernel};

/// Rows of a product that are computed together.
pub const ROWS: usize = 6;

/// A matrix to read.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    /// Its first number.
    pub start: *const f32,
    /// From a row to the next.
    pub row: usize,
    /// From a column to the next.
    pub column: usize,
}

// SAFETY: it is but an address; who reads there promises that nobody writes.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

/// A matrix to write, whose rows have no gaps.
#[derive(Debug, Clone, Copy)]
pub struct MatrixMut {
    /// Its first number.
    pub start: *mut f32,
    /// From a row to the next.
    pub row: usize,
}

impl Matrix {
    /// The same, with rows for columns.
    pub fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    /// From a row on.
    #[inline(always)]
    pub fn at_row(self, row: usize) -> Self {
        Self { start: self.start.wrapping_add(row * self.row), ..self }
    }

    /// From a column on.
    #[inline(always)]
    pub fn at_column(self, column: usize) -> Self {
        Self { start: self.start.wrapping_add(column * self.column), ..self }
    }
}

impl MatrixMut {
    /// From a row on.
    #[inline(always)]
    pub fn at_row(self, row: usize) -> Self {
        Self { start: self.start.wrapping_add(row * self.row), ..self }
    }

    /// To read.
    #[inline(always)]
    pub fn read(self) -> Matrix {
        Matrix { start: self.start, row: self.row, column: 1 }
    }
}

/// Sizes of a product.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Columns, rounded up to whole lanes.
    pub columns: usize,
    /// Summands.
    pub depth: usize,
}

/// `c = a b`, or added to what is there. Columns of `b` follow each other without gaps.
///
/// # Safety
/// The matrices must be as large as the tile, with columns rounded up to sixteen.
pub unsafe fn multiply(level: Level, tile: Tile, a: Matrix, b: Matrix, c: MatrixMut, add: bool) {
    debug_assert_eq!(b.column, 1);
    multiply_kernel(level, tile, a, b, c, add.then_some(c.read()));
}

kernel! {
    fn multiply_kernel<V>(
        tile: Tile, a: Matrix, b: Matrix, c: MatrixMut, start: Option<Matrix>,
    ) {
        // SAFETY: the caller of `multiply`, the only one, promised that all is there.
        unsafe { multiply_inline::<V, 0>(tile, a, b, c, start) }
    }
}

/// `c = start + a b`, as a part of another kernel. `b` is brought near so many rows ahead, if any.
///
/// # Safety
/// As [`multiply`]; `start` must be as large as `c`.
#[inline(always)]
pub unsafe fn multiply_inline<V: Lanes, const AHEAD: usize>(
    tile: Tile,
    a: Matrix,
    b: Matrix,
    c: MatrixMut,
    start: Option<Matrix>,
) {
    let mut at = 0;
    while at < tile.columns {
        let left = (tile.columns - at).div_ceil(WIDTH);
        let start = start.map(|start| start.at_column(at));
        let (b, c) = (b.at_column(at), MatrixMut { start: c.start.wrapping_add(at), ..c });
        // Four vectors of columns fit into 32 registers, one into 16.
        let vectors = if V::WIDE { left.min(4) } else { 1 };
        // SAFETY: the caller's promise, for some of its columns.
        unsafe {
            match vectors {
                1 => all_rows::<V, 1, AHEAD>(tile, a, b, c, start),
                2 => all_rows::<V, 2, AHEAD>(tile, a, b, c, start),
                3 => all_rows::<V, 3, AHEAD>(tile, a, b, c, start),
                _ => all_rows::<V, 4, AHEAD>(tile, a, b, c, start),
            }
        }
        at += vectors * WIDTH;
    }
}

#[inline(always)]
unsafe fn all_rows<V: Lanes, const C: usize, const AHEAD: usize>(
    tile: Tile,
    a: Matrix,
    b: Matrix,
    c: MatrixMut,
    start: Option<Matrix>,
) {
    let (rows, depth) = (tile.rows, tile.depth);
    let start_at = |row: usize| start.map(|start| start.at_row(row));
    let mut row = 0;
    // SAFETY: the caller's promise, for some of its rows.
    unsafe {
        while row + ROWS <= rows {
            block::<V, ROWS, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), start_at(row));
            row += ROWS;
        }
        while row + 2 <= rows {
            block::<V, 2, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), start_at(row));
            row += 2;
        }
        if row < rows {
            block::<V, 1, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), start_at(row));
        }
    }
}

/// All sums of a few rows and columns stay in registers.
#[inline(always)]
unsafe fn block<V: Lanes, const R: usize, const C: usize, const AHEAD: usize>(
    depth: usize,
    a: Matrix,
    b: Matrix,
    c: MatrixMut,
    start: Option<Matrix>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; R];
        if let Some(start) = start {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(start.start.add(row * start.row + at * WIDTH));
                }
            }
        }
        for row in 0..R {
            for at in 0..C {
                V::expect(c.start.wrapping_add(row * c.row + at * WIDTH));
            }
        }
        let (mut from_a, mut from_b) = (a.start, b.start);
        for _ in 0..depth {
            let mut right = [V::splat(0.0); C];
            for (at, right) in right.iter_mut().enumerate() {
                *right = V::load(from_b.add(at * WIDTH));
                if AHEAD > 0 {
                    V::expect(from_b.wrapping_add(AHEAD * b.row + at * WIDTH));
                }
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = V::splat(*from_a.add(row * a.row));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = left.fused(right, *sum);
                }
            }
            from_a = from_a.wrapping_add(a.column);
            from_b = from_b.wrapping_add(b.row);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (at, sum) in sums.into_iter().enumerate() {
                sum.store(c.start.add(row * c.row + at * WIDTH));
            }
        }
    }
}

kernel! {
    /// Writes rows as columns: `columns` of `rows`, both in whole lanes; rows that are not there
    /// become zeros.
    fn transpose_kernel<V>(rows: usize, columns: usize, from: Matrix, to: MatrixMut) {
        for row in (0..rows).step_by(WIDTH) {
            for column in (0..columns).step_by(WIDTH) {
                let mut square = [V::splat(0.0); WIDTH];
                for (at, lanes) in square.iter_mut().enumerate() {
                    if row + at < rows {
                        // SAFETY: the row is there, in whole lanes.
                        *lanes = unsafe { V::load(from.at_row(row + at).start.add(column)) };
                    }
                }
                for (at, lanes) in V::transposed(square).into_iter().enumerate() {
                    // SAFETY: there is room for whole lanes.
                    unsafe { lanes.store(to.at_row(column + at).start.add(row)) };
                }
            }
        }
    }
}

/// Writes the rows of `from` as columns of `to`.
///
/// # Safety
/// `from` must have so many rows, and `to` so many columns, both in whole lanes; `to` must have room
/// for as many rows as `from` has columns, rounded up to sixteen.
pub unsafe fn transpose(level: Level, rows: usize, columns: usize, from: Matrix, to: MatrixMut) {
    transpose_kernel(level, rows, columns, from, to);
}
