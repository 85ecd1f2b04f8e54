//! Token and position embeddings.

use crate::Cpu;
use crate::elementwise::add_assign_kernel;
use crate::lanes::WIDTH;
use crate::memory::copy_kernel;
use crate::slice::{DisjointMut, Slice};
use crate::thread_pool::MIN_ELEMENTS_PER_THREAD;
use regatta_device::EmbeddingOps;
use regatta_device::ops::{EmbeddingBackwardArgs, PositionBackwardArgs, positioned_rows};
use regatta_device::tensor::{View, ViewMut, row_count};

impl EmbeddingOps for Cpu {
    fn embedding(&self, tokens: View<'_>, first: usize, table: View<'_>, y: ViewMut<'_>) {
        let _timer = self.timer("embedding");
        let tokens = tokens.as_slice::<i32>();
        if tokens.is_empty() {
            return;
        }
        let dim = row_count(y.len(), tokens.len());
        let local_rows = row_count(table.len(), dim);
        let (table, y) = (Slice::from(table), DisjointMut::new(y));
        self.for_each_row(tokens.len(), dim, |row| {
            // SAFETY: rows are disjoint.
            let y = unsafe { y.slice(row * dim..(row + 1) * dim) };
            match local_row(tokens[row], first, local_rows) {
                Some(at) => copy_kernel(self.isa, table.slice(at * dim..(at + 1) * dim), y),
                None => y.fill(0.0),
            }
        });
    }

    fn embedding_backward(&self, args: EmbeddingBackwardArgs<'_>) {
        let _timer = self.timer("embedding_backward");
        let EmbeddingBackwardArgs { tokens, first, dy, dtable } = args;
        let tokens = tokens.as_slice::<i32>();
        if tokens.is_empty() {
            return;
        }
        let dim = row_count(dy.len(), tokens.len());
        let local_rows = row_count(dtable.len(), dim);
        self.scatter_add(dim, dy, dtable, |row| local_row(tokens[row], first, local_rows));
    }

    fn add_position_embedding(&self, dim: usize, pos: View<'_>, table: View<'_>, y: ViewMut<'_>) {
        let _timer = self.timer("add_position_embedding");
        let pos = pos.as_slice::<i32>();
        let rows = positioned_rows(y.len(), dim, pos.len());
        let (table, y) = (Slice::from(table), DisjointMut::new(y));
        self.for_each_row(rows, dim, |row| {
            let position = pos[row % pos.len()] as usize;
            // SAFETY: rows are disjoint.
            let y = unsafe { y.slice(row * dim..(row + 1) * dim) };
            add_assign_kernel(self.isa, table.slice(position * dim..(position + 1) * dim), y);
        });
    }

    fn position_embedding_backward(&self, args: PositionBackwardArgs<'_>) {
        let _timer = self.timer("position_embedding_backward");
        let PositionBackwardArgs { dim, positions, dy, dtable } = args;
        let positions = positions.as_slice::<i32>();
        positioned_rows(dy.len(), dim, positions.len());
        let position = |row: usize| Some(positions[row % positions.len()] as usize);
        self.scatter_add(dim, dy, dtable, position);
    }
}

impl Cpu {
    /// Accumulates rows of `dy` into rows of `dtable`. Split by columns: every thread adds all rows in the
    /// same order, so the result does not depend on the number of threads.
    fn scatter_add(
        &self,
        dim: usize,
        dy: View<'_>,
        dtable: ViewMut<'_>,
        target_row: impl Fn(usize) -> Option<usize> + Sync,
    ) {
        let rows = row_count(dy.len(), dim);
        let (dy, dtable) = (Slice::from(dy), DisjointMut::new(dtable));
        let min_columns = MIN_ELEMENTS_PER_THREAD.div_ceil(rows.max(1));
        self.pool.run_ranges(dim, min_columns, WIDTH, |columns| {
            let range = |row: usize| row * dim + columns.start..row * dim + columns.end;
            for row in 0..rows {
                if let Some(target) = target_row(row) {
                    // SAFETY: columns are disjoint.
                    let target = unsafe { dtable.slice(range(target)) };
                    add_assign_kernel(self.isa, dy.slice(range(row)), target);
                }
            }
        });
    }
}

/// A token's row in the local part of a table, which starts at token `first`.
fn local_row(token: i32, first: usize, local_rows: usize) -> Option<usize> {
    (token as usize).checked_sub(first).filter(|row| *row < local_rows)
}
