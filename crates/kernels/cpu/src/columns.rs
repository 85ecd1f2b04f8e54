//! Copies of some columns of rows.

use std::ops::Range;

use crate::Cpu;
use crate::elementwise::{copy, rows};
use crate::numbers::{Apart, Source};
use regatta_device::memory::{View, ViewMut};

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    /// Columns of rows that are `from_wide` go into as many columns of rows that are `to_wide`.
    pub(super) fn copy_columns(
        &self,
        from: View<'_>,
        from_wide: usize,
        from_columns: Range<usize>,
        to: ViewMut<'_>,
        to_wide: usize,
        to_columns: Range<usize>,
    ) {
        if from_columns.is_empty() {
            return;
        }
        let inside = from_columns.end <= from_wide && to_columns.end <= to_wide;
        assert!(inside, "columns behind the end of a row");
        let count = rows(from.len(), from_wide);
        assert_eq!(count, rows(to.len(), to_wide), "other rows");
        let (from, to) = (Source::from(from), Apart::new(to));
        let of = |row: usize, wide: usize, columns: &Range<usize>| {
            row * wide + columns.start..row * wide + columns.end
        };
        self.pool.run_ranges(count, LEAST.div_ceil(from_columns.len()), 1, |range| {
            for row in range {
                // SAFETY: rows are disjoint.
                let to = unsafe { to.part(of(row, to_wide, &to_columns)) };
                copy(self.level, from.part(of(row, from_wide, &from_columns)), to);
            }
        });
    }
}
