//! The blocks of one tensor-parallel rank, with matrices optionally split into tiles. No I/O.

use std::collections::HashMap;

use super::tile::NewTile;
use super::{ModelShape, Module, ParamBlock, ParamKind, Shard, Tile};

/// The blocks of a model as one tensor-parallel rank has them. Tiles are blocks of their own, appended
/// after embedding, layers and head.
#[derive(Debug, Clone)]
pub struct BlockLayout {
    /// All blocks.
    pub blocks: Vec<ParamBlock>,
    /// For each block, the index of the block whose pass uses it: its own, unless it is a tile.
    pub users: Vec<usize>,
    tiles: Vec<HashMap<Module, TiledMatrix>>,
}

#[derive(Debug, Clone, Default)]
struct TiledMatrix {
    tiles: Vec<Tile>,
    columns: usize,
}

impl BlockLayout {
    /// Splits the matrices of layers, the token embedding and the output matrix into `count` tiles each.
    pub fn new(shape: &ModelShape, shard: Shard, count: usize) -> Self {
        let blocks = shape.sharded_blocks(shard);
        let (users, tiles) = ((0..blocks.len()).collect(), vec![HashMap::new(); blocks.len()]);
        let mut layout = Self { blocks, users, tiles };
        if count > 1 {
            (0..layout.blocks.len()).for_each(|user| layout.split(user, count));
        }
        layout
    }

    fn split(&mut self, user: usize, count: usize) {
        for NewTile { module, rows, block } in self.blocks[user].split_tiles(count) {
            let matrix = self.tiles[user].entry(module).or_default();
            matrix.tiles.push(Tile { block: self.blocks.len(), rows });
            matrix.columns = block.parameters[0].shape[1];
            self.blocks.push(block);
            self.users.push(user);
        }
    }

    /// The matrices of a block.
    pub fn matrices(&self, user: usize) -> Matrices<'_> {
        Matrices { block: &self.blocks[user], tiles: &self.tiles[user] }
    }
}

/// The matrices of a block: in the block itself, or in tiles.
#[derive(Debug, Clone, Copy)]
pub struct Matrices<'a> {
    /// The block, without what is in tiles.
    pub block: &'a ParamBlock,
    tiles: &'a HashMap<Module, TiledMatrix>,
}

impl Matrices<'_> {
    /// The tiles of a module's weight matrix, none if it is in the block itself, and its rows and
    /// columns.
    ///
    /// # Panics
    /// If the block has no such matrix.
    pub fn weight(&self, module: Module) -> (Vec<Tile>, [usize; 2]) {
        if let Some(TiledMatrix { tiles, columns }) = self.tiles.get(&module) {
            let rows = tiles.last().map_or(0, |tile| tile.rows.end);
            return (tiles.clone(), [rows, *columns]);
        }
        match self.block.param(module, ParamKind::Weight) {
            Some(weight) => (Vec::new(), [weight.shape[0], weight.shape[1]]),
            None => panic!("block {} has no weight {}", self.block.name, module.name()),
        }
    }
}
