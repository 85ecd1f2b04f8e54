//! Large matrix products of single precision. The right matrix is packed into panels as wide as the
//! registers hold, by all threads; then each thread multiplies some rows of the left one with them.

use super::Cpu;
use super::lanes::{Lanes, WIDTH};
use super::level::{Level, kernel};
use super::numbers::Apart;
use super::pool::cut;
use super::product::Sizes;
use super::tile::{Matrix, MatrixMut, ROWS, Tile, multiply_inline};

/// Columns of a panel.
const PANEL: usize = 4 * WIDTH;

/// Summands that are packed at once, at most: a panel and a strip of them fit into the second cache.
const DEPTH: usize = 1536;

/// Rows of the left matrix that meet a panel while it is in the cache: blocks that fill cache lines.
const STRIP: usize = 8 * ROWS;

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
        let depth = k.div_ceil(k.div_ceil(DEPTH));
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
            let parts = self.pool.parts(m * n, 64 * PANEL);
            self.pool.run(parts, |part| {
                let rows = cut(m, parts, part, ROWS);
                let mut strip = self.scratch(STRIP * sizes.k);
                let all = Product { sizes, a, packed, c, start };
                multiply_rows(self.level, &all, rows.start, rows.end, &mut strip);
            });
        }
    }
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
    fn multiply_rows<V>(product: &Product<'_>, first: usize, last: usize, strip: &mut [f32]) {
        let Sizes { n, k, .. } = product.sizes;
        let packs = product.a.column != 1;
        for start in (first..last).step_by(STRIP) {
            let rows = (last - start).min(STRIP);
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
        return unsafe { multiply_inline::<V>(tile, a, b, c, start) };
    }
    let mut sums = [0.0; ROWS * PANEL];
    let room = MatrixMut { start: sums.as_mut_ptr(), row: PANEL };
    // SAFETY: there is room for whole panels.
    unsafe { multiply_inline::<V>(tile, a, b, room, None) };
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
