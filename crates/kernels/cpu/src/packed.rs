//! Large matrix products of single precision. The right matrix is packed into panels as wide as the
//! registers hold, by all threads; then each thread multiplies some rows of the left one with them.

use std::ops::Range;

use crate::Cpu;
use crate::lanes::{Lanes, WIDTH};
use crate::level::{Level, kernel};
use crate::numbers::Apart;
use crate::pool::cut;
use crate::product::{LEAST, Sizes};
use crate::tile::{Matrix, MatrixMut, ROWS, Tile, multiply_inline};

/// Columns of a panel.
const PANEL: usize = 4 * WIDTH;

/// Numbers of a strip, at most: it and a panel fit into the second cache.
const STRIP_NUMBERS: usize = 72 * 1024;

/// Rows of a strip, at most: blocks that fill cache lines.
const STRIP_ROWS: usize = 16 * ROWS;

/// Rows of a panel that it is read ahead by: it comes from the second cache.
const AHEAD: usize = 8;

/// Multiplications that a thread does in some ten microseconds.
const MUCH: usize = 2 << 20;

/// A product with fewer rows is not worth packing for.
const LEAST_ROWS: usize = 2 * ROWS;

/// What a product is added to.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// Nothing.
    Zero,
    /// What is there.
    Add,
    /// This row, in each row.
    Row(&'a [f32]),
}

/// Whether [`Cpu::multiply_packed`] is the fastest for such a product.
pub fn pays(level: Level, sizes: Sizes) -> bool {
    level != Level::Plain && sizes.m >= LEAST_ROWS
}

impl Cpu {
    /// `c = start + a b`.
    ///
    /// # Safety
    /// The matrices must be as large as the sizes say.
    pub(super) unsafe fn multiply_packed(
        &self,
        sizes: Sizes,
        a: Matrix,
        b: Matrix,
        c: &mut [f32],
        start: Start<'_>,
    ) {
        let Sizes { m, n, k } = sizes;
        let panels = n.div_ceil(PANEL);
        // As even as can be.
        let depth = k.div_ceil(k.div_ceil(self.depth));
        let mut packed = self.scratch(panels * PANEL * depth);
        let c = Apart::new(c);
        for first in (0..k).step_by(depth) {
            let sizes = Sizes { k: (k - first).min(depth), ..sizes };
            let (a, b) = (a.at_column(first), b.at_row(first));
            let start = if first == 0 { start } else { Start::Add };
            let room = Apart::new(&mut packed[..panels * PANEL * sizes.k]);
            self.pool.run_ranges(panels, 1, 1, |range| {
                let size = PANEL * sizes.k;
                // SAFETY: ranges are disjoint.
                let room = unsafe { room.reals(range.start * size..range.end * size) };
                pack(self.level, sizes, b, range.start, room);
            });
            let packed = &packed[..panels * PANEL * sizes.k];
            let parts = self.pool.many_parts(sizes.work(), LEAST, MUCH);
            let strip_rows = strip_rows(sizes.k);
            self.pool.run(parts, |part| {
                let rows = cut(m, parts, part, ROWS);
                let mut strip = self.scratch(strip_rows * sizes.k);
                let all = Product { sizes, a, packed, c, start };
                multiply_rows(self.level, &all, rows, strip_rows, &mut strip);
            });
        }
    }
}

/// Rows of the left matrix that meet a panel while it is in the cache.
fn strip_rows(depth: usize) -> usize {
    (STRIP_NUMBERS / depth.max(1) / ROWS * ROWS).clamp(ROWS, STRIP_ROWS)
}

struct Product<'a> {
    sizes: Sizes,
    a: Matrix,
    packed: &'a [f32],
    c: Apart<'a>,
    start: Start<'a>,
}

kernel! {
    /// Writes panels of the right matrix, from one on: for each summand a row of columns, those that
    /// are not there zero.
    fn pack<V>(sizes: Sizes, b: Matrix, first: usize, room: &mut [f32]) {
        let Sizes { n, k, .. } = sizes;
        for (panel, room) in room.chunks_exact_mut(PANEL * k).enumerate() {
            let columns = (first + panel) * PANEL..n.min((first + panel + 1) * PANEL);
            let b = b.at_column(columns.start);
            // SAFETY: these columns are there.
            unsafe {
                if b.column == 1 {
                    copy_panel::<V>(columns.len(), b, room);
                } else {
                    turn_panel::<V>(columns.len(), k, b, room);
                }
            }
        }
    }
}

/// A panel of a matrix whose columns follow each other.
#[inline(always)]
unsafe fn copy_panel<V: Lanes>(columns: usize, b: Matrix, room: &mut [f32]) {
    for (row, room) in room.chunks_exact_mut(PANEL).enumerate() {
        let from = b.at_row(row).start;
        // SAFETY: the caller sees to it that the row is there; there is room for whole lanes.
        unsafe {
            if columns == PANEL {
                for at in (0..PANEL).step_by(WIDTH) {
                    V::load(from.add(at)).store(room.as_mut_ptr().add(at));
                }
            } else {
                let from = std::slice::from_raw_parts(from, columns);
                room[..columns].copy_from_slice(from);
                room[columns..].fill(0.0);
            }
        }
    }
}

/// A panel of a matrix whose rows follow each other: sixteen columns and summands at a time.
#[inline(always)]
unsafe fn turn_panel<V: Lanes>(columns: usize, k: usize, b: Matrix, room: &mut [f32]) {
    let whole = if b.row == 1 { k / WIDTH * WIDTH } else { 0 };
    for first in (0..PANEL).step_by(WIDTH) {
        for depth in (0..whole).step_by(WIDTH) {
            let mut square = [V::splat(0.0); WIDTH];
            for (at, lanes) in square.iter_mut().enumerate() {
                if first + at < columns {
                    // SAFETY: the caller sees to it that the column is there.
                    *lanes = unsafe { V::load(b.at_column(first + at).start.add(depth)) };
                }
            }
            for (at, lanes) in V::transposed(square).into_iter().enumerate() {
                let to = &mut room[(depth + at) * PANEL + first..][..WIDTH];
                // SAFETY: there is room for sixteen.
                unsafe { lanes.store(to.as_mut_ptr()) };
            }
        }
        for depth in whole..k {
            for at in first..first + WIDTH {
                let from = b.at_column(at).at_row(depth).start;
                // SAFETY: the caller sees to it that the column is there.
                let number = if at < columns { unsafe { *from } } else { 0.0 };
                room[depth * PANEL + at] = number;
            }
        }
    }
}

kernel! {
    /// Multiplies some rows of the left matrix with all panels, a strip of rows after the other.
    fn multiply_rows<V>(
        product: &Product<'_>, all: Range<usize>, strip_rows: usize, strip: &mut [f32],
    ) {
        let Sizes { n, k, .. } = product.sizes;
        let packs = product.a.column != 1;
        for start in all.clone().step_by(strip_rows) {
            let rows = (all.end - start).min(strip_rows);
            if packs {
                // Summands that lie far apart are brought together: they are used many times.
                // SAFETY: these rows are there.
                unsafe { bring(rows, k, product.a.at_row(start), strip) };
            }
            for column in (0..n).step_by(PANEL) {
                for at in (0..rows).step_by(ROWS) {
                    let a = match packs {
                        true => Matrix { start: strip[at * k..].as_ptr(), row: 1, column: ROWS },
                        false => product.a.at_row(start + at),
                    };
                    // SAFETY: these rows and columns are there.
                    unsafe {
                        let rows = (rows - at).min(ROWS);
                        multiply_panel::<V>(product, start + at, rows, column, a);
                    }
                }
            }
        }
    }
}

/// Copies a strip of rows: block after block, summand by summand.
#[inline(always)]
unsafe fn bring(rows: usize, k: usize, a: Matrix, strip: &mut [f32]) {
    let whole = if a.row == 1 { rows / ROWS } else { 0 };
    for depth in 0..k {
        let a = a.at_column(depth);
        for block in 0..whole {
            // SAFETY: the caller sees to it that they are there.
            let six = unsafe { &*a.at_row(block * ROWS).start.cast::<[f32; ROWS]>() };
            strip[(block * k + depth) * ROWS..][..ROWS].copy_from_slice(six);
        }
        for row in whole * ROWS..rows {
            let place = (row / ROWS * k + depth) * ROWS + row % ROWS;
            // SAFETY: as above.
            strip[place] = unsafe { *a.at_row(row).start };
        }
    }
}

/// A few rows and one panel.
#[inline(always)]
unsafe fn multiply_panel<V: Lanes>(
    product: &Product<'_>,
    row: usize,
    rows: usize,
    column: usize,
    a: Matrix,
) {
    let Sizes { n, k, .. } = product.sizes;
    let panel = &product.packed[column * k..][..PANEL * k];
    let b = Matrix { start: panel.as_ptr(), row: PANEL, column: 1 };
    let width = PANEL.min(n - column);
    let tile = Tile { rows, columns: width, depth: k };
    let c = MatrixMut { start: product.c.address(row * n + column), row: n };
    if width.is_multiple_of(WIDTH) {
        let start = match product.start {
            Start::Zero => None,
            Start::Add => Some(c.read()),
            Start::Row(numbers) => {
                Some(Matrix { start: numbers[column..].as_ptr(), row: 0, column: 1 })
            }
        };
        // SAFETY: rows and columns are there, in whole lanes.
        return unsafe { multiply_inline::<V, AHEAD>(tile, a, b, c, start) };
    }
    let mut sums = [0.0; ROWS * PANEL];
    let room = MatrixMut { start: sums.as_mut_ptr(), row: PANEL };
    // SAFETY: there is room for whole panels.
    unsafe { multiply_inline::<V, AHEAD>(tile, a, b, room, None) };
    for (at, sums) in sums.chunks_exact(PANEL).enumerate().take(rows) {
        // SAFETY: these rows are this thread's alone, and `width` more columns are there.
        let c = unsafe { std::slice::from_raw_parts_mut(c.at_row(at).start, width) };
        for (at, (c, sum)) in c.iter_mut().zip(sums).enumerate() {
            *c = match product.start {
                Start::Zero => *sum,
                Start::Add => *c + sum,
                Start::Row(numbers) => numbers[column + at] + sum,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Precision;
    use super::*;

    #[test]
    fn sums_that_are_cut_are_the_same() {
        let sizes = Sizes { m: 50, n: 70, k: 100 };
        let Sizes { m, n, k } = sizes;
        let number = |i: usize| (i * 7919 % 64) as f32 / 16.0 - 2.0;
        let numbers = |count: usize| (0..count).map(number).collect::<Vec<f32>>();
        let (a, b, row) = (numbers(m * k), numbers(k * n), numbers(n));
        let sum = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>();
        for level in Level::all().into_iter().filter(|level| pays(*level, sizes)) {
            for depth in [16, 33, 100, 1536] {
                let cpu = Cpu { depth, ..Cpu::with_level(2, Precision::F32, level) };
                let left = Matrix { start: a.as_ptr(), row: k, column: 1 };
                let right = Matrix { start: b.as_ptr(), row: n, column: 1 };
                let mut c = vec![f32::NAN; m * n];
                // SAFETY: the matrices are as large as the sizes say.
                unsafe { cpu.multiply_packed(sizes, left, right, &mut c, Start::Row(&row)) };
                // All these sums are exact.
                for (at, found) in c.into_iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    assert_eq!(found, sum(i, j) + row[j], "{level:?}, depth {depth}: {i}, {j}");
                }
            }
        }
    }
}
