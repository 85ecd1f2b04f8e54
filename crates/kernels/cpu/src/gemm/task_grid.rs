//! How the output of a GEMM is split into tasks: blocks of rows and columns whose operands fit into L2.
//!
//! With blocks of rows only, every task would stream all of B from L3, and a GEMM with few rows would have
//! fewer tasks than threads.

use std::ops::Range;

use crate::gemm::GemmShape;
use crate::thread_pool::task_range;

/// Rows and columns of a tile of the kernel, or of the largest block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize {
    pub rows: usize,
    pub columns: usize,
}

/// Cost of loading a row or a column of the operands of a block, in multiply-adds per element.
const LOAD_COST: usize = 96;

/// A grid of blocks of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskGrid {
    shape: [usize; 2],
    tile: BlockSize,
    /// Blocks along each side.
    row_blocks: usize,
    column_blocks: usize,
}

impl TaskGrid {
    /// The grid that takes `threads` threads the least time.
    pub fn new(shape: GemmShape, tile: BlockSize, max: BlockSize, threads: usize) -> Self {
        let candidates = |len: usize, tile: usize, max: usize| {
            let tiles = len.div_ceil(tile).max(1);
            let mut blocks: Vec<usize> = (1..=(max / tile).clamp(1, tiles))
                .map(|block_tiles| tiles.div_ceil(block_tiles))
                .collect();
            blocks.dedup();
            blocks
        };
        let rows = candidates(shape.m, tile.rows, max.rows);
        let columns = candidates(shape.n, tile.columns, max.columns);
        let grids = rows.iter().flat_map(|row_blocks| {
            columns.iter().map(|column_blocks| Self {
                shape: [shape.m, shape.n],
                tile,
                row_blocks: *row_blocks,
                column_blocks: *column_blocks,
            })
        });
        // Both lists have at least one element. Of equally fast grids, that with fewer blocks.
        let cost = |grid: &Self| (grid.cost(threads), grid.tasks());
        grids.min_by_key(cost).unwrap_or(Self {
            shape: [shape.m, shape.n],
            tile,
            row_blocks: 1,
            column_blocks: 1,
        })
    }

    /// Time of the thread with the most blocks, and half a block more: threads do not end together.
    fn cost(&self, threads: usize) -> usize {
        let side = |len: usize, tile: usize, blocks: usize| {
            len.div_ceil(tile).div_ceil(blocks).saturating_mul(tile)
        };
        let rows = side(self.shape[0], self.tile.rows, self.row_blocks);
        let columns = side(self.shape[1], self.tile.columns, self.column_blocks);
        let block = rows * columns + LOAD_COST * (rows + columns);
        (2 * self.tasks().div_ceil(threads.max(1)) + 1).saturating_mul(block)
    }

    /// Number of blocks.
    pub fn tasks(&self) -> usize {
        self.row_blocks * self.column_blocks
    }

    /// The rows of a block of rows.
    pub fn rows(&self, row_block: usize) -> Range<usize> {
        task_range(self.shape[0], self.row_blocks, row_block, self.tile.rows)
    }

    /// All blocks of rows.
    pub fn row_blocks(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.row_blocks).map(|row_block| self.rows(row_block))
    }

    /// The block of rows of a task.
    pub fn row_block(&self, task: usize) -> usize {
        task % self.row_blocks
    }

    /// Whether several tasks have the same rows.
    pub fn shares_rows(&self) -> bool {
        self.column_blocks > 1
    }

    /// The rows and columns of a task. Tasks that follow each other have the same columns.
    pub fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row_block, column_block) = (self.row_block(task), task / self.row_blocks);
        let columns =
            task_range(self.shape[1], self.column_blocks, column_block, self.tile.columns);
        (self.rows(row_block), columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TILE: BlockSize = BlockSize { rows: 32, columns: 32 };
    const MAX: BlockSize = BlockSize { rows: 256, columns: 512 };

    fn grid(m: usize, n: usize, threads: usize) -> TaskGrid {
        TaskGrid::new(GemmShape { m, n, k: 1 }, TILE, MAX, threads)
    }

    proptest! {
        #[test]
        fn blocks_cover_the_output_once_in_whole_tiles(
            m in 1..3000_usize, n in 1..3000_usize, threads in 1..20_usize,
        ) {
            let grid = grid(m, n, threads);
            let mut area = 0;
            for task in 0..grid.tasks() {
                let (rows, columns) = grid.block(task);
                prop_assert!(rows.start % 32 == 0 && columns.start % 32 == 0);
                prop_assert!(rows.end <= m && columns.end <= n);
                prop_assert!(rows.len() <= MAX.rows && columns.len() <= MAX.columns);
                area += rows.len() * columns.len();
            }
            prop_assert_eq!(area, m * n);
        }
    }

    #[test]
    fn few_rows_are_split_by_columns_too() {
        // 24 tiles of rows are not enough for 16 threads to have equal parts.
        let grid = grid(768, 3072, 16);
        assert!(grid.column_blocks > 1 && grid.tasks() >= 16, "{grid:?}");
        let per_thread = grid.tasks().div_ceil(16) * 16;
        assert!(grid.tasks() * 10 >= per_thread * 9, "{grid:?}");
    }

    #[test]
    fn one_thread_has_large_blocks() {
        assert!(grid(2048, 3072, 1).tasks() <= 8 * 8, "{:?}", grid(2048, 3072, 1));
        assert_eq!(grid(20, 20, 16).tasks(), 1);
    }
}
