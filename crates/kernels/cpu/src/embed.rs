//! Rows of tables: tokens and positions.

use crate::Cpu;
use crate::elementwise::{copy, rows};
use crate::lanes::WIDTH;
use crate::level::kernel;
use crate::numbers::{Apart, Source, Target};
use regatta_device::memory::{View, ViewMut};

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    pub(super) fn embed_forward(
        &self,
        tokens: &[u32],
        first: usize,
        table: View<'_>,
        y: ViewMut<'_>,
    ) {
        if tokens.is_empty() {
            return;
        }
        let width = rows(y.len(), tokens.len());
        let (here, table, y) = (rows(table.len(), width), Source::from(table), Apart::new(y));
        self.pool.run_ranges(tokens.len(), LEAST.div_ceil(width), 1, |range| {
            for row in range {
                // SAFETY: rows are disjoint.
                let y = unsafe { y.part(row * width..(row + 1) * width) };
                match row_of(tokens[row], first, here) {
                    Some(at) => copy(self.level, table.part(at * width..(at + 1) * width), y),
                    None => y.fill(0.0),
                }
            }
        });
    }

    pub(super) fn embed_backward(
        &self,
        tokens: &[u32],
        first: usize,
        dy: View<'_>,
        dtable: ViewMut<'_>,
    ) {
        if tokens.is_empty() {
            return;
        }
        let width = rows(dy.len(), tokens.len());
        let here = rows(dtable.len(), width);
        self.add_to_rows(width, dy, dtable, |row| row_of(tokens[row], first, here));
    }

    pub(super) fn positions_forward(
        &self,
        width: usize,
        places: &[u32],
        positions: View<'_>,
        y: ViewMut<'_>,
    ) {
        let count = placed_rows(width, places, y.len());
        let (positions, y) = (Source::from(positions), Apart::new(y));
        self.pool.run_ranges(count, LEAST.div_ceil(width), 1, |range| {
            for row in range {
                let place = places[row % places.len()] as usize;
                // SAFETY: rows are disjoint.
                let y = unsafe { y.part(row * width..(row + 1) * width) };
                add_row(self.level, positions.part(place * width..(place + 1) * width), y);
            }
        });
    }

    pub(super) fn positions_backward(
        &self,
        width: usize,
        places: &[u32],
        dy: View<'_>,
        dpositions: ViewMut<'_>,
    ) {
        placed_rows(width, places, dy.len());
        let place = |row: usize| Some(places[row % places.len()] as usize);
        self.add_to_rows(width, dy, dpositions, place);
    }

    /// Adds each row of `dy` to the row of `to` that is told, if one is. Cut by columns: each thread
    /// adds the same rows in the same order, but other numbers of them.
    fn add_to_rows(
        &self,
        width: usize,
        dy: View<'_>,
        to: ViewMut<'_>,
        row_of: impl Fn(usize) -> Option<usize> + Sync,
    ) {
        let count = rows(dy.len(), width);
        let (dy, to) = (Source::from(dy), Apart::new(to));
        self.pool.run_ranges(width, LEAST.div_ceil(count.max(1)), WIDTH, |columns| {
            let of = |row: usize| row * width + columns.start..row * width + columns.end;
            for row in 0..count {
                if let Some(target) = row_of(row) {
                    // SAFETY: columns are disjoint.
                    let target = unsafe { to.part(of(target)) };
                    add_row(self.level, dy.part(of(row)), target);
                }
            }
        });
    }
}

/// A token's row in a part of a table: so many rows from the first on.
fn row_of(token: u32, first: usize, rows: usize) -> Option<usize> {
    (token as usize).checked_sub(first).filter(|row| *row < rows)
}

/// How many rows there are, each with a place.
fn placed_rows(width: usize, places: &[u32], elements: usize) -> usize {
    let rows = rows(elements, width);
    assert!(
        rows == 0 || (!places.is_empty() && rows.is_multiple_of(places.len())),
        "{} places for {rows} rows",
        places.len()
    );
    rows
}

kernel! {
    fn add_row<V>(x: Source<'_>, y: Target<'_>) {
        let mut y = y;
        for at in (0..y.len()).step_by(WIDTH) {
            y.put(at, y.get::<V>(at).plus(x.get(at)));
        }
    }
}
