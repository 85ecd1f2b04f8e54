//! The blocks of a tensor-parallel rank, those that are alike counted and not repeated: a model may
//! have ten thousand layers, and as many tiles in each.

use std::collections::BTreeMap;

use crate::model::Model;
use crate::shape::{Block, Shape, Share};

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The first one.
    Embedding,
    /// A layer, or what its tiles leave of it.
    Layer,
    /// Some rows of a layer's matrix.
    Tile,
    /// The last one.
    Head,
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

impl Alike {
    fn one(place: Place, block: &Block) -> Self {
        let norms = block.parameters.iter().filter(|p| p.name.contains(".norm"));
        let norms = norms.map(|parameter| parameter.len()).sum();
        Self { place, room: block.room(), norms, count: 1 }
    }
}

/// What a rank of a tensor group has of a model's blocks.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub embedding: Alike,
    /// The embedding without all but the table, which is all that a tied head needs.
    pub table: Alike,
    /// Numbers of the table.
    pub table_len: usize,
    /// Of each layer.
    pub layer: Vec<Alike>,
    pub head: Alike,
}

impl Blocks {
    /// With matrices in so many tiles. All layers are like the first.
    pub fn new(shape: &Shape, share: Share, tiles: usize) -> Self {
        let Model { mut blocks, .. } =
            Model::tiled(Shape { layers: 1, ..shape.clone() }, share, tiles);
        let mut alike: BTreeMap<(Place, usize, usize), u64> = BTreeMap::new();
        let layer = std::iter::once(Alike::one(Place::Layer, &blocks[1]));
        let tiles = blocks.iter().skip(3).map(|block| Alike::one(Place::Tile, block));
        for Alike { place, room, norms, .. } in layer.chain(tiles) {
            *alike.entry((place, room, norms)).or_default() += 1;
        }
        let layer = alike.into_iter().map(|((place, room, norms), count)| Alike {
            place,
            room,
            norms,
            count,
        });
        let (embedding, head) =
            (Alike::one(Place::Embedding, &blocks[0]), Alike::one(Place::Head, &blocks[2]));
        blocks[0].parameters.truncate(1);
        Self {
            embedding,
            table: Alike::one(Place::Embedding, &blocks[0]),
            table_len: blocks[0].len(),
            layer: layer.collect(),
            head,
        }
    }
}
