//! Causal attention, head by head. What is masked is not computed, but for the few numbers that
//! share a block with others.

mod backward;
mod forward;
mod one;

use std::ops::Range;

use super::Cpu;
use super::lanes::WIDTH;
use super::level::kernel;
use super::numbers::{Apart, Source, get, put};
use super::tile::{Matrix, MatrixMut, ROWS};
use crate::device::{Attention, AttentionDrop};
use crate::random::Mask;

/// Queries whose softmax is in memory at once: few enough for the cache, in whole blocks.
const QUERIES: usize = 8 * ROWS;

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
struct Head {
    of: Attention,
    batch: usize,
    head: usize,
}

impl Head {
    fn scale(self) -> f32 {
        (1.0 / (self.of.head_width as f64).sqrt()) as f32
    }

    /// The head of keys and values that it uses.
    fn kv_head(self) -> usize {
        self.head / (self.of.heads / self.of.kv_heads)
    }

    /// The columns of `qkv` where its queries, keys and values are.
    fn columns(self) -> [usize; 3] {
        let Attention { heads, kv_heads, head_width, .. } = self.of;
        let kv = self.kv_head();
        [self.head, heads + kv, heads + kv_heads + kv].map(|place| place * head_width)
    }

    /// Where the numbers of one of its queries are in the order of batch, head, query.
    fn query(self, query: usize) -> usize {
        (self.batch * self.of.heads + self.head) * self.of.sequence + query
    }

    /// Numbers of the head in whole lanes.
    fn padded(self) -> usize {
        self.of.head_width.next_multiple_of(WIDTH)
    }
}

/// Tokens in whole lanes.
fn padded_sequence(of: Attention) -> usize {
    of.sequence.next_multiple_of(WIDTH)
}

/// Keys that a block of queries sees, in whole lanes.
fn keys_seen(queries: &Range<usize>) -> usize {
    queries.end.next_multiple_of(WIDTH)
}

/// The blocks of a range, which begins at a whole block.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(ROWS).map(move |start| start..end.min(start + ROWS))
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

    /// Writes what [`Self::place`] had to put elsewhere.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn scatter(&self, to: Apart<'_>, columns: Columns, room: &[f32]) {
        if to.is_real() && columns.whole() {
            return;
        }
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
    fn scatter_rows<V>(room: &[f32], columns: Columns, to: Apart<'_>) {
        let padded = columns.width.next_multiple_of(WIDTH);
        for (row, from) in room.chunks_exact(padded).enumerate() {
            // SAFETY: the caller of `scatter`, the only one, promised that they are its own.
            let mut to = unsafe { to.part(columns.range(row)) };
            for at in (0..columns.width).step_by(WIDTH) {
                to.put(at, get::<V>(from, at));
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
