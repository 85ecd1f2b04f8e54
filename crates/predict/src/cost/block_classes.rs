//! The blocks of a tensor-parallel rank grouped into classes of equal ones: a model may have ten
//! thousand layers and as many tiles in each.

use std::collections::BTreeMap;

use crate::logit_chunks::LogitChunks;
use crate::shape::{BlockLayout, ModelShape, Module, ParamBlock, ParamSpec, Shard};

/// What a block is. Where several roles share a buffer size, the first determines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockRole {
    /// The embedding, or its untiled parameters.
    Embedding,
    /// A layer, or its untiled parameters.
    Layer,
    /// A tile of a layer's matrix.
    LayerTile,
    /// A tile of the token embedding.
    EmbeddingTile,
    /// The head, or its untiled parameters.
    Head,
    /// A tile of an untied output matrix.
    HeadTile,
}

/// Equal blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockClass {
    /// What they are.
    pub role: BlockRole,
    /// Elements of each, padding included.
    pub padded_len: usize,
    /// Elements of norms in each.
    pub norm_len: usize,
    /// Number of blocks.
    pub count: u64,
}

/// The blocks of one tensor-parallel rank.
#[derive(Debug, Clone)]
pub(super) struct BlockClasses {
    /// The embedding and its tiles.
    pub embedding: Vec<BlockClass>,
    /// Of these the token embedding only, which is all that a tied head needs.
    pub token_embedding: Vec<BlockClass>,
    /// Lengths of the token embedding or its tiles, with their number.
    pub token_embedding_lens: BTreeMap<usize, u64>,
    /// One layer and its tiles.
    pub layer: Vec<BlockClass>,
    /// The head and its tiles.
    pub head: Vec<BlockClass>,
    /// Chunking of the logits.
    pub logits: LogitChunks,
}

impl BlockClasses {
    /// Blocks with `tiles` tiles per matrix. All layers are equal.
    pub fn new(shape: &ModelShape, shard: Shard, tiles: usize) -> Self {
        use BlockRole::{Embedding, EmbeddingTile, Head, HeadTile, Layer, LayerTile};
        let shape = ModelShape { num_layers: 1, ..shape.clone() };
        let mut layout = BlockLayout::new(&shape, shard, tiles);
        let logits = LogitChunks::new(&shape, &layout);
        let embedding = classes(&layout, 0, [Embedding, EmbeddingTile]);
        let layer = classes(&layout, 1, [Layer, LayerTile]);
        let head = classes(&layout, 2, [Head, HeadTile]);
        let is_token_embedding = |p: &ParamSpec| p.role.module == Module::TokenEmbedding;
        layout.blocks[0].parameters.retain(is_token_embedding);
        let token_embedding = classes(&layout, 0, [Embedding, EmbeddingTile]);
        let mut token_embedding_lens = BTreeMap::new();
        let parameters = layout.blocks.iter().flat_map(|block| &block.parameters);
        for parameter in parameters.filter(|parameter| is_token_embedding(parameter)) {
            *token_embedding_lens.entry(parameter.len()).or_default() += 1;
        }
        Self { embedding, token_embedding, token_embedding_lens, layer, head, logits }
    }
}

/// The classes of the blocks that one pass uses: the block itself, unless it is empty, and its tiles.
fn classes(layout: &BlockLayout, user: usize, [untiled, tile]: [BlockRole; 2]) -> Vec<BlockClass> {
    let mut counts: BTreeMap<(BlockRole, usize, usize), u64> = BTreeMap::new();
    for (index, block) in layout.blocks.iter().enumerate() {
        if layout.users[index] == user && !block.is_empty() {
            let role = if index == user { untiled } else { tile };
            *counts.entry((role, block.padded_len(), norm_len(block))).or_default() += 1;
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|((role, padded_len, norm_len), count)| BlockClass {
            role,
            padded_len,
            norm_len,
            count,
        })
        .collect()
}

fn norm_len(block: &ParamBlock) -> usize {
    let norms = block.parameters.iter().filter(|parameter| parameter.role.module.is_norm());
    norms.map(ParamSpec::len).sum()
}
