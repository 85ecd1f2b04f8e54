//! Tiles: rows of matrices that come, are used and go by themselves, so that a layer, a table or a head
//! larger than memory can be trained. No I/O.

use std::ops::Range;

use super::{Block, POSITIONS, Parameter, Patch, Share};

/// Some rows of a matrix, which mostly have a block of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// The number of the block that has them.
    pub block: usize,
    /// Which rows of the matrix, as this rank has it.
    pub rows: Range<usize>,
}

impl Parameter {
    /// Some of its rows.
    fn rows(&self, rows: Range<usize>) -> Self {
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        let mut patches = Vec::new();
        let mut before = 0;
        for Patch { rows: own, columns } in &self.patches {
            let clip = |row: usize| row.clamp(before, before + own.len()) - before + own.start;
            let rows = clip(rows.start)..clip(rows.end);
            if !rows.is_empty() {
                patches.push(Patch { rows, columns: columns.clone() });
            }
            before += own.len();
        }
        Self { shape, patches, start: 0, ..self.clone() }
    }
}

impl Block {
    /// Takes the matrices out, and gives each in so many tiles: its short name, which of its rows,
    /// and the block that they are now. What is left is small: of matrices, positions, which are far
    /// fewer than kinds of tokens.
    pub fn take_tiles(&mut self, count: usize) -> Vec<(String, Range<usize>, Block)> {
        let (matrices, small): (Vec<_>, Vec<_>) =
            self.parameters.drain(..).partition(|p| p.shape.len() > 1 && p.name != POSITIONS);
        for parameter in small {
            let start = self.room();
            self.parameters.push(Parameter { start, ..parameter });
        }
        let tile = |matrix: &Parameter, number: usize| {
            let short = matrix.name[self.name.len() + 1..].to_owned();
            let rows = Share { rank: number, ranks: count }.of(matrix.shape[0]);
            let name = format!("{}.{number}", matrix.name);
            let parameters = vec![matrix.rows(rows.clone())];
            // One row more or less must not make it need memory of another size.
            let least = matrix.shape[0].div_ceil(count) * matrix.shape[1];
            (short, rows, Block { name, parameters, share: self.share, least })
        };
        let all = matrices.iter().flat_map(|matrix| (0..count).map(move |n| tile(matrix, n)));
        all.filter(|(_, rows, _)| !rows.is_empty()).collect()
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
        fn tiles_have_all_that_the_block_had(llama: bool, tp in 1usize..3, count in 1usize..7) {
            let shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
            let blocks = |rank| shape.blocks_of(Share { rank, ranks: tp });
            for whole in (0..tp).flat_map(blocks) {
                let mut left = whole.clone();
                let tiles = left.take_tiles(count);
                let is_small = |p: &Parameter| p.shape.len() == 1 || p.name == POSITIONS;
                prop_assert!(left.parameters.iter().all(is_small));
                prop_assert!(left.len() < 200);
                for matrix in whole.parameters.iter().filter(|p| !is_small(p)) {
                    let is_of = |short: &str| matrix.name.ends_with(&format!(".{short}"));
                    let tiles: Vec<_> =
                        tiles.iter().filter(|(short, _, _)| is_of(short)).collect();
                    let parts = |p: &Parameter| -> Vec<(usize, Range<usize>)> {
                        let rows = |patch: &Patch| {
                            let columns = patch.columns.clone();
                            patch.rows.clone().map(move |row| (row, columns.clone())).collect()
                        };
                        p.patches.iter().flat_map(|patch| -> Vec<_> { rows(patch) }).collect()
                    };
                    let all: Vec<_> =
                        tiles.iter().flat_map(|(_, _, tile)| parts(&tile.parameters[0])).collect();
                    prop_assert_eq!(all, parts(matrix));
                    let ends: Vec<usize> = tiles.iter().map(|(_, rows, _)| rows.end).collect();
                    prop_assert_eq!(ends.last(), Some(&matrix.shape[0]));
                    for (_, rows, tile) in &tiles {
                        prop_assert_eq!(tile.len(), rows.len() * matrix.shape[1]);
                        prop_assert_eq!(tile.room(), tiles[0].2.room());
                    }
                }
            }
        }
    }
}
