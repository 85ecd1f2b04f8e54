//! The blocks of a tensor-parallel rank, those that are alike counted and not repeated: a model may
//! have ten thousand layers, and as many tiles in each.

use std::collections::BTreeMap;

use crate::head::LogitChunks;
use crate::shape::{Block, BlockLayout, Shape, Share, TABLE};

/// What a block is. Of those that use the same memory, the first says how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The first one, or what the table's tiles leave of it.
    Embedding,
    /// A layer, or what its tiles leave of it.
    Layer,
    /// Some rows of a layer's matrix.
    Tile,
    /// Some rows of the table of tokens.
    TableTile,
    /// The last one, or what the tiles of its matrix leave of it.
    Head,
    /// Some rows of a matrix that is the head's own.
    HeadTile,
}

/// Blocks that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alike {
    /// What they are.
    pub place: Place,
    /// Numbers of each, with gaps.
    pub room: usize,
    /// Those of them that are norms'.
    pub norms: usize,
    /// How many there are.
    pub count: u64,
}

/// What a rank of a tensor group has of a model's blocks.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    /// The embedding, and tiles of the table.
    pub embedding: Vec<Alike>,
    /// Of these the table alone, which is all that a tied head needs.
    pub table: Vec<Alike>,
    /// Numbers of the table, or of each of its tiles, and how many have as many.
    pub table_lens: BTreeMap<usize, u64>,
    /// Of each layer.
    pub layer: Vec<Alike>,
    /// The head, and tiles of its own matrix.
    pub head: Vec<Alike>,
    /// How the head chunks its logits.
    pub logits: LogitChunks,
}

impl Blocks {
    /// With matrices in so many tiles. All layers are like the first.
    pub fn new(shape: &Shape, share: Share, tiles: usize) -> Self {
        let shape = Shape { layers: 1, ..shape.clone() };
        let layout = BlockLayout::new(&shape, share, tiles);
        let logits = LogitChunks::new(&shape, &layout);
        let BlockLayout { mut blocks, users, .. } = layout;
        let embedding = used(&blocks, &users, 0, [Place::Embedding, Place::TableTile]);
        let layer = used(&blocks, &users, 1, [Place::Layer, Place::Tile]);
        let head = used(&blocks, &users, 2, [Place::Head, Place::HeadTile]);
        blocks[0].parameters.retain(|parameter| parameter.name == TABLE);
        let table = used(&blocks, &users, 0, [Place::Embedding, Place::TableTile]);
        let mut table_lens = BTreeMap::new();
        for parameter in blocks.iter().flat_map(|block| &block.parameters) {
            if parameter.name == TABLE {
                *table_lens.entry(parameter.len()).or_default() += 1;
            }
        }
        Self { embedding, table, table_lens, layer, head, logits }
    }
}

/// What the passes of a block use: itself, unless tiles leave nothing of it, and its tiles.
fn used(blocks: &[Block], users: &[usize], user: usize, [own, tile]: [Place; 2]) -> Vec<Alike> {
    let mut alike: BTreeMap<(Place, usize, usize), u64> = BTreeMap::new();
    for (number, block) in blocks.iter().enumerate() {
        if users[number] == user && !block.is_empty() {
            let place = if number == user { own } else { tile };
            *alike.entry((place, block.room(), norms(block))).or_default() += 1;
        }
    }
    let one = |((place, room, norms), count)| Alike { place, room, norms, count };
    alike.into_iter().map(one).collect()
}

/// Numbers of a block that are norms'.
fn norms(block: &Block) -> usize {
    let norms = block.parameters.iter().filter(|parameter| parameter.name.contains(".norm"));
    norms.map(|parameter| parameter.len()).sum()
}
