//! The model: embedding, layers and head, each with an explicit forward and backward pass. There is no
//! autograd graph: the forward pass returns the activations that the backward pass needs.

mod attention;
mod decode;
mod embedding;
mod fp8;
mod fp8_head;
mod head;
mod layer;
mod linear;
mod maybe_owned;
mod mlp;
mod norm;
mod param_access;
mod pass_ctx;
mod positions;
mod residual;
mod vocab_table;
mod weight_bias;

pub use decode::KvCache;
pub use embedding::Embedding;
pub use head::{LmHead, ScaledLoss};
pub use layer::{Layer, LayerSaved};
pub use linear::DeferredWeightGrad;
pub use maybe_owned::MaybeOwned;
pub use param_access::{Params, ParamsAndGrads, ResidentParams};
pub use pass_ctx::{Dropout, PassCtx};
pub use positions::PositionCache;
pub use residual::{Residual, StreamGrad};
pub use vocab_table::VocabTable;

use regatta_device::random::DropoutMask;
use regatta_predict::logit_chunks::LogitChunks;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{BlockLayout, ModelShape, Module, ParamBlock, Shard};

/// The structure of a model. It owns no parameters: callers pass them to each block.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its sizes.
    pub shape: ModelShape,
    /// The parameters of each block: embedding, layers, head, then tiles of their matrices.
    pub blocks: Vec<ParamBlock>,
    /// For each block, the block whose pass uses it: itself, or for a tile the block it belongs to.
    pub users: Vec<usize>,
    /// The first block.
    pub embedding: Embedding,
    /// The transformer layers.
    pub layers: Vec<Layer>,
    /// The last block.
    pub head: LmHead,
}

impl Model {
    /// The unsharded model of a shape, which must have been checked.
    pub fn new(shape: ModelShape) -> Self {
        Self::tiled(shape, Shard::UNSHARDED, 1)
    }

    /// A tensor-parallel shard with the matrices of layers, token embedding and head in `tiles` tiles
    /// each.
    pub fn tiled(shape: ModelShape, shard: Shard, tiles: usize) -> Self {
        let layout = BlockLayout::new(&shape, shard, tiles);
        let embedding = Embedding::new(&shape, &layout.matrices(0));
        let layer = |block| Layer::new(&shape, block, &layout.matrices(block));
        let layers = (1..=shape.num_layers).map(layer).collect();
        let tied = shape.tie_embeddings.then_some(&embedding.table);
        let logits = LogitChunks::new(&shape, &layout);
        let head = LmHead::new(&shape, &layout.matrices(shape.num_layers + 1), tied, logits);
        let BlockLayout { blocks, users, .. } = layout;
        Self { shape, blocks, users, embedding, layers, head }
    }

    /// Removes the parameters that a pipeline stage does not have, and returns for each block whether
    /// the stage has it. A stage with a tied head but without the embedding has a copy of the table.
    pub fn retain_stage(&mut self, stage: &Stage) -> Vec<bool> {
        let has_copy = stage.has_tied_copy(&self.shape);
        if has_copy {
            let is_table = |module| module == Module::TokenEmbedding;
            self.blocks[0].parameters.retain(|parameter| is_table(parameter.role.module));
        }
        let is_local = |(block, user): (&ParamBlock, &usize)| {
            !block.is_empty() && (stage.owns(*user) || *user == 0 && has_copy)
        };
        self.blocks.iter().zip(&self.users).map(is_local).collect()
    }

    /// All dropout masks of a training pass, of which each is used in both directions; none without
    /// dropout.
    pub fn dropout_masks(&self, ctx: &PassCtx) -> Vec<DropoutMask> {
        let of_layer = |layer: &Layer| {
            let attention = layer.attention.as_ref().map(|attention| attention.dropout_masks(ctx));
            attention.into_iter().flatten().chain([layer.mlp.dropout_mask(ctx)])
        };
        let of_layers = self.layers.iter().flat_map(of_layer);
        of_layers.chain([self.embedding.dropout_mask(ctx)]).flatten().collect()
    }

    /// The layer of a block.
    pub fn layer(&self, block: usize) -> &Layer {
        &self.layers[block - 1]
    }

    /// The head's block.
    pub fn head_block(&self) -> usize {
        self.shape.num_layers + 1
    }
}
