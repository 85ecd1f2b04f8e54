//! Attention, head by head. What is masked is not computed, but for the few numbers that share a
//! block with others. Attention of whole sequences is the part of all tokens, in place.

mod backward;
mod forward;
mod halves;
mod halves_back;
mod one;
mod part;

use std::ops::Range;

pub use halves::HeadMemory;

use super::Cpu;
use super::lanes::WIDTH;
use super::level::kernel;
use super::numbers::{Apart, Source, get, put};
use super::tile::{Matrix, MatrixMut, ROWS};
use regatta_device::device::{Attention, AttentionDrop, AttentionPart};
use regatta_device::random::Mask;

/// Queries whose softmax is in memory at once: few enough for the cache, in whole blocks.
const QUERIES: usize = 8 * ROWS;

/// Where the numbers of heads are.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Numbers of a row that has queries.
    q_row: usize,
    /// Numbers of a row that has keys and values.
    kv_row: usize,
    /// Where the first head's keys and its values begin in that.
    kv_columns: [usize; 2],
    /// From the sum of a head to that of the next one, of the same query.
    head_sums: usize,
    /// From the sum of a query to that of the next one, of the same head.
    query_sums: usize,
}

impl Layout {
    /// Queries, keys and values in one row. Sums of a head follow each other.
    fn whole(of: Attention) -> Self {
        let row = of.qkv_width();
        let kv_columns = [of.heads, of.heads + of.kv_heads].map(|heads| heads * of.head_width);
        Self { q_row: row, kv_row: row, kv_columns, head_sums: of.sequence, query_sums: 1 }
    }

    /// Queries apart from keys and values. Sums of a query follow each other.
    fn part(of: AttentionPart) -> Self {
        let kv_columns = [0, of.kv_heads * of.head_width];
        let (q_row, kv_row) = (of.width(), of.kv_width());
        Self { q_row, kv_row, kv_columns, head_sums: 1, query_sums: of.heads }
    }
}

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
struct Head {
    of: AttentionPart,
    layout: Layout,
    batch: usize,
    head: usize,
}

impl Head {
    fn scale(self) -> f32 {
        (1.0 / (self.of.head_width as f64).sqrt()) as f32
    }

    fn queries(self) -> Columns {
        Columns {
            first_row: self.batch * self.of.queries,
            rows: self.of.queries,
            stride: self.layout.q_row,
            column: self.head * self.of.head_width,
            width: self.of.head_width,
        }
    }

    /// Where what comes out goes.
    fn results(self) -> Columns {
        Columns { stride: self.of.width(), ..self.queries() }
    }

    /// Keys, and values.
    fn keys_and_values(self) -> [Columns; 2] {
        let kv_head = self.head / (self.of.heads / self.of.kv_heads);
        self.layout.kv_columns.map(|column| Columns {
            first_row: self.batch * self.of.keys,
            rows: self.of.keys,
            stride: self.layout.kv_row,
            column: column + kv_head * self.of.head_width,
            width: self.of.head_width,
        })
    }

    /// Where the sum of one of its queries is.
    fn sum(self, query: usize) -> usize {
        let first = self.batch * self.of.heads * self.of.queries;
        first + self.head * self.layout.head_sums + query * self.layout.query_sums
    }

    /// Numbers of the head in whole lanes.
    fn padded(self) -> usize {
        self.of.head_width.next_multiple_of(WIDTH)
    }

    /// Keys in whole lanes.
    fn padded_keys(self) -> usize {
        self.of.keys.next_multiple_of(WIDTH)
    }

    /// Keys that any of a block of queries sees.
    fn seen(self, queries: &Range<usize>) -> usize {
        self.of.seen(queries.end - 1)
    }
}

/// The blocks of so many rows of a range, which begins at a whole block.
fn blocks(range: Range<usize>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(rows).map(move |start| start..end.min(start + rows))
}

/// One head's columns of all tokens of a sequence.
#[derive(Debug, Clone, Copy)]
struct Columns {
    /// Rows before those of the sequence.
    first_row: usize,
    rows: usize,
    /// From a row to the next.
    stride: usize,
    column: usize,
    width: usize,
}

impl Columns {
    #[inline(always)]
    fn range(&self, row: usize) -> Range<usize> {
        let start = (self.first_row + row) * self.stride + self.column;
        start..start + self.width
    }

    /// Some of the rows.
    fn part(self, rows: &Range<usize>) -> Self {
        Self { first_row: self.first_row + rows.start, rows: rows.len(), ..self }
    }

    /// Whether kernels can take them from where they are.
    fn whole(&self) -> bool {
        self.width.is_multiple_of(WIDTH)
    }
}

impl Cpu {
    /// Has the columns as a matrix in single precision and whole lanes: where they are if they are
    /// so already, else in `room`, which is then as many rows of padded width.
    fn gather(&self, from: Source<'_>, columns: Columns, room: &mut [f32]) -> Matrix {
        if let (Source::F32(numbers), true) = (from, columns.whole()) {
            let all = &numbers[columns.range(0).start..columns.range(columns.rows - 1).end];
            return Matrix { start: all.as_ptr(), row: columns.stride, column: 1 };
        }
        let padded = columns.width.next_multiple_of(WIDTH);
        gather_rows(self.level, from, columns, &mut room[..columns.rows * padded]);
        Matrix { start: room.as_ptr(), row: padded, column: 1 }
    }

    /// Where a matrix for the columns can be written: in place, or in `room`.
    fn place(&self, to: Apart<'_>, columns: Columns, room: &mut [f32]) -> MatrixMut {
        if to.is_real() && columns.whole() {
            assert!(columns.range(columns.rows - 1).end <= to.len(), "rows of another width");
            return MatrixMut { start: to.address(columns.range(0).start), row: columns.stride };
        }
        let padded = columns.width.next_multiple_of(WIDTH);
        let room = &mut room[..columns.rows * padded];
        room.fill(0.0);
        MatrixMut { start: room.as_mut_ptr(), row: padded }
    }

    /// As [`Self::place`], with what is there.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn place_kept(&self, to: Apart<'_>, columns: Columns, room: &mut [f32]) -> MatrixMut {
        if !(to.is_real() && columns.whole()) {
            let padded = columns.width.next_multiple_of(WIDTH);
            // SAFETY: the caller's promise.
            unsafe { self.read_rows(to, columns, room) };
            return MatrixMut { start: room.as_mut_ptr(), row: padded };
        }
        self.place(to, columns, room)
    }

    /// Writes what [`Self::place`] or [`Self::place_kept`] had to put elsewhere.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn scatter(&self, to: Apart<'_>, columns: Columns, room: &[f32]) {
        if to.is_real() && columns.whole() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_rows(to, columns, room) };
    }

    /// What is in the columns goes into rows of padded width.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn read_rows(&self, from: Apart<'_>, columns: Columns, room: &mut [f32]) {
        let padded = columns.width.next_multiple_of(WIDTH);
        keep_rows(self.level, from, columns, &mut room[..columns.rows * padded]);
    }

    /// Rows of padded width go into the columns.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn write_rows(&self, to: Apart<'_>, columns: Columns, room: &[f32]) {
        let padded = columns.width.next_multiple_of(WIDTH);
        scatter_rows(self.level, &room[..columns.rows * padded], columns, to);
    }
}

kernel! {
    fn gather_rows<V>(from: Source<'_>, columns: Columns, room: &mut [f32]) {
        let padded = columns.width.next_multiple_of(WIDTH);
        for (row, to) in room.chunks_exact_mut(padded).enumerate() {
            let from = from.part(columns.range(row));
            // What is not there is read as zeros.
            for at in (0..padded).step_by(WIDTH) {
                put(to, at, from.get::<V>(at));
            }
        }
    }
}

kernel! {
    /// The caller is the only one who has these columns.
    fn keep_rows<V>(from: Apart<'_>, columns: Columns, room: &mut [f32]) {
        let padded = columns.width.next_multiple_of(WIDTH);
        for (row, to) in room.chunks_exact_mut(padded).enumerate() {
            // SAFETY: the caller of `read_rows`, the only one, promised that they are its own.
            let from = unsafe { from.part(columns.range(row)) };
            for at in (0..padded).step_by(WIDTH) {
                put(to, at, from.get::<V>(at));
            }
        }
    }
}

kernel! {
    /// The caller is the only one who has these columns.
    fn scatter_rows<V>(room: &[f32], columns: Columns, to: Apart<'_>) {
        let padded = columns.width.next_multiple_of(WIDTH);
        for (row, from) in room.chunks_exact(padded).enumerate() {
            // SAFETY: the caller of `write_rows`, the only one, promised that they are its own.
            let mut to = unsafe { to.part(columns.range(row)) };
            let whole = columns.width / WIDTH * WIDTH;
            for at in (0..whole).step_by(WIDTH) {
                // SAFETY: both have sixteen more.
                unsafe { to.store(at, V::load(from.as_ptr().add(at))) };
            }
            if whole < columns.width {
                to.put(whole, get::<V>(from, whole));
            }
        }
    }
}

/// A part of scratch memory, and the rest.
fn take<'a>(rest: &mut &'a mut [f32], elements: usize) -> &'a mut [f32] {
    let (part, after) = std::mem::take(rest).split_at_mut(elements);
    *rest = after;
    part
}

/// A head's mask of a query.
fn mask_of(drop: Option<AttentionDrop>, head: Head, query: usize) -> Option<Mask> {
    drop.map(|drop| drop.from([head.batch, head.head, query, 0]).mask)
}
