//! Tiles: row ranges of matrices that are gathered and freed separately, so that a layer, an embedding
//! or a head larger than memory can be trained. No I/O.

use std::ops::Range;

use super::{Module, ParamBlock, ParamSpec, Shard, ShardSlice};

/// A row range of a matrix, usually a block of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// Index of the block that holds it.
    pub block: usize,
    /// Rows of the local matrix.
    pub rows: Range<usize>,
}

/// A tile before it has a block index.
#[derive(Debug)]
pub struct NewTile {
    /// Module of its matrix.
    pub module: Module,
    /// Rows of the local matrix.
    pub rows: Range<usize>,
    /// The tile as a block.
    pub block: ParamBlock,
}

impl ParamSpec {
    fn row_range(&self, rows: Range<usize>) -> Self {
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        let mut slices = Vec::new();
        let mut before = 0;
        for ShardSlice { rows: local, columns } in &self.slices {
            let clip = |row: usize| row.clamp(before, before + local.len()) - before + local.start;
            let rows = clip(rows.start)..clip(rows.end);
            if !rows.is_empty() {
                slices.push(ShardSlice { rows, columns: columns.clone() });
            }
            before += local.len();
        }
        Self { shape, slices, offset: 0, padding: 0, ..self.clone() }
    }
}

impl ParamBlock {
    /// Moves the matrices into `count` tiles each. Vectors and the position embedding, which is far
    /// smaller than the token embedding, stay in the block.
    pub fn split_tiles(&mut self, count: usize) -> Vec<NewTile> {
        let (matrices, small): (Vec<_>, Vec<_>) = self
            .parameters
            .drain(..)
            .partition(|p| p.shape.len() > 1 && p.role.module != Module::PositionEmbedding);
        for parameter in small {
            let offset = self.padded_len();
            self.parameters.push(ParamSpec { offset, ..parameter });
        }
        let tile = |matrix: &ParamSpec, index: usize| {
            let rows = Shard { rank: index, ranks: count }.range(matrix.shape[0]);
            let block = ParamBlock {
                name: format!("{}.{index}", matrix.name),
                parameters: vec![matrix.row_range(rows.clone())],
                shard: self.shard,
                // Tiles that differ by one row have equal buffers.
                min_len: matrix.shape[0].div_ceil(count) * matrix.shape[1],
            };
            NewTile { module: matrix.role.module, rows, block }
        };
        let tiles = matrices.iter().flat_map(|matrix| (0..count).map(move |i| tile(matrix, i)));
        tiles.filter(|tile| !tile.rows.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Family;
    use crate::testing::shape;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tiles_cover_every_row_of_every_matrix_once(llama: bool, tp in 1usize..3, count in 1usize..7) {
            let shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
            let blocks = |rank| shape.sharded_blocks(Shard { rank, ranks: tp });
            for full in (0..tp).flat_map(blocks) {
                let mut remaining = full.clone();
                let tiles = remaining.split_tiles(count);
                let is_small = |p: &ParamSpec| p.shape.len() == 1 || p.role.module == Module::PositionEmbedding;
                prop_assert!(remaining.parameters.iter().all(is_small));
                prop_assert!(remaining.len() < 200);
                for matrix in full.parameters.iter().filter(|p| !is_small(p)) {
                    let module = matrix.role.module;
                    let tiles: Vec<_> = tiles.iter().filter(|tile| tile.module == module).collect();
                    let row_columns = |p: &ParamSpec| -> Vec<(usize, Range<usize>)> {
                        let rows = |slice: &ShardSlice| slice.rows.clone().zip(std::iter::repeat(slice.columns.clone()));
                        p.slices.iter().flat_map(rows).collect()
                    };
                    let all = tiles.iter().flat_map(|tile| row_columns(&tile.block.parameters[0]));
                    prop_assert_eq!(all.collect::<Vec<_>>(), row_columns(matrix));
                    let ends: Vec<usize> = tiles.iter().map(|tile| tile.rows.end).collect();
                    prop_assert_eq!(ends.last(), Some(&matrix.shape[0]));
                    for NewTile { rows, block, .. } in &tiles {
                        prop_assert_eq!(block.len(), rows.len() * matrix.shape[1]);
                        prop_assert_eq!(block.padded_len(), tiles[0].block.padded_len());
                    }
                }
            }
        }
    }
}
