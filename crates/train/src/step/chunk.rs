//! Forward and backward pass of one micro-batch through one chunk of the model.
//!
//! A chunk is a range of blocks: some layers, preceded by the embedding in the first chunk and followed
//! by the head in the last. Blocks are prefetched while the one before is in use, unsharded, used and
//! resharded; their gradients are reduced as soon as they are complete.

use std::ops::Range;

use super::graph::GraphInputs;
use super::layer_params::LayerParams;
use super::{DeviceModel, MicroBatch, StepConfig};
use crate::buffer_pool::PooledTensor;
use crate::model::{
    DeferredWeightGrad, Dropout, LayerSaved, Model, PassCtx, Residual, ScaledLoss, StreamGrad,
};
use crate::state::{BlockStore, GradSync, Result};
use regatta_device::tensor::{View, ViewMut};
use regatta_predict::pipeline::Stage;

/// A micro-batch in a chunk of the model.
pub(super) struct ChunkPass<'a> {
    pub device_model: &'a DeviceModel,
    pub store: &'a mut BlockStore,
    pub ctx: PassCtx<'a>,
    pub micro_batch: MicroBatch<'a>,
    /// The tokens in device memory, if the pass is captured.
    pub inputs: Option<&'a GraphInputs>,
    /// The blocks of the chunk.
    pub blocks: Range<usize>,
    /// How gradients are reduced after this micro-batch.
    pub sync: GradSync,
    pub tied: TiedEmbedding,
}

/// Whether head and embedding share a table, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TiedEmbedding {
    Untied,
    /// On this stage.
    SameStage,
    /// The first and the last stage have a copy each, whose gradients are summed after all passes.
    SplitAcrossStages,
}

impl TiedEmbedding {
    pub fn new(device_model: &DeviceModel, stage: &Stage) -> Self {
        match device_model.model.shape.tie_embeddings {
            false => Self::Untied,
            true if stage.ties_across_stages(&device_model.model.shape) => Self::SplitAcrossStages,
            true => Self::SameStage,
        }
    }
}

/// When weight gradients are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightGrads {
    /// In the backward pass.
    Immediate,
    /// Later: zero-bubble schedules fill pipeline bubbles with them.
    Deferred,
}

/// Deferred weight gradients of a block.
pub(super) struct DeferredBlock {
    block: usize,
    weight_grads: Vec<DeferredWeightGrad>,
}

/// Tokens in device memory.
enum DeviceTokens<'a> {
    Uploaded(PooledTensor),
    Captured(View<'a>),
}

impl DeviceTokens<'_> {
    fn view(&self) -> View<'_> {
        match self {
            Self::Uploaded(tokens) => tokens.view(),
            Self::Captured(tokens) => *tokens,
        }
    }
}

impl<'a> ChunkPass<'a> {
    fn model(&self) -> &'a Model {
        &self.device_model.model
    }

    /// The residual stream after the chunk, and what the backward pass of its layers needs. `input` is
    /// the residual stream from the previous chunk; the first chunk embeds the tokens instead.
    pub fn forward(&mut self, input: Option<PooledTensor>) -> Result<(Residual, Vec<LayerSaved>)> {
        let mut x = Residual::new(match input {
            Some(x) => x,
            None => self.embedding_forward()?,
        });
        let mut saved = Vec::with_capacity(self.layers().len());
        for block in self.layers() {
            self.store.unshard(block)?;
            if block + 1 < self.blocks.end {
                self.device_model.prefetch(self.store, block + 1);
            }
            let layer = self.model().layer(block);
            let params = &mut LayerParams::forward(self.store, block);
            let (output, layer_saved) = layer.forward(&self.ctx, params, x)?;
            self.store.reshard(block);
            saved.push(layer_saved);
            x = output;
        }
        Ok((x, saved))
    }

    fn embedding_forward(&mut self) -> Result<PooledTensor> {
        self.store.unshard(0)?;
        self.store.prefetch(1);
        let embedding = &self.model().embedding;
        let inputs = self.input_tokens();
        let params = &mut LayerParams::forward(self.store, 0);
        let x = embedding.forward(&self.ctx, params, inputs.view())?;
        self.store.reshard(0);
        Ok(x)
    }

    /// Adds the loss of the micro-batch to a scalar; `x` is the residual stream after the last layer.
    pub fn head_loss(&mut self, x: Residual, loss: ViewMut<'_>) -> Result<()> {
        let (head, block) = (&self.model().head, self.model().head_block());
        let targets = self.target_tokens();
        self.store.unshard(block)?;
        let params = &mut LayerParams::forward(self.store, block);
        head.loss(&self.ctx, params, x, targets.view(), loss)?;
        self.store.reshard(block);
        Ok(())
    }

    /// Adds the loss of the micro-batch to a scalar. Returns the gradient of the residual stream `x`
    /// after the last layer.
    pub fn head_backward(&mut self, x: Residual, loss: ScaledLoss<'_>) -> Result<StreamGrad> {
        let (head, block) = (&self.model().head, self.model().head_block());
        let table_sync = match self.tied {
            TiedEmbedding::Untied => self.sync,
            // The embedding's backward pass adds to the table after this.
            TiedEmbedding::SameStage => GradSync::Accumulate,
            TiedEmbedding::SplitAcrossStages => GradSync::Deferred,
        };
        self.store.unshard(block)?;
        let targets = self.target_tokens();
        let params = &mut LayerParams::backward(self.store, block, table_sync);
        let grad = head.loss_and_grads(&self.ctx, params, x, targets.view(), loss)?;
        self.store.reshard(block);
        self.reduce_grads(block)?;
        Ok(grad)
    }

    /// Backward pass through the layers: turns `grad` from the gradient of the residual stream after the
    /// last one into that before the first. Returns the deferred weight gradients.
    pub fn layers_backward(
        &mut self,
        saved: Vec<LayerSaved>,
        grad: &mut StreamGrad,
        weight_grads: WeightGrads,
    ) -> Result<Vec<DeferredBlock>> {
        let mut deferred_blocks = Vec::new();
        for (block, layer_saved) in self.layers().zip(saved).rev() {
            self.store.unshard(block)?;
            if block > self.layers().start {
                self.store.prefetch(block - 1);
            }
            let (layer, mut deferred) = (self.model().layer(block), Vec::new());
            let mut params = LayerParams::backward(self.store, block, self.sync);
            params.deferred = (weight_grads == WeightGrads::Deferred).then_some(&mut deferred);
            layer.backward(&self.ctx, &mut params, layer_saved, grad)?;
            self.store.reshard(block);
            match weight_grads {
                WeightGrads::Immediate => self.reduce_grads(block)?,
                WeightGrads::Deferred => {
                    deferred_blocks.push(DeferredBlock { block, weight_grads: deferred });
                }
            }
        }
        Ok(deferred_blocks)
    }

    /// Backward pass of the embedding, the end of the backward pass.
    pub fn embedding_backward(&mut self, dx: PooledTensor) -> Result<()> {
        let embedding = &self.model().embedding;
        let is_split = self.tied == TiedEmbedding::SplitAcrossStages;
        let table_sync = if is_split { GradSync::Deferred } else { self.sync };
        let inputs = self.input_tokens();
        let params = &mut LayerParams::backward(self.store, 0, table_sync);
        embedding.backward(&self.ctx, params, inputs.view(), dx)?;
        if is_split && embedding.table.is_in_block(0) {
            return Ok(());
        }
        self.reduce_grads(0)
    }

    /// Computes deferred weight gradients.
    pub fn backward_weights(&mut self, deferred: Vec<DeferredBlock>) -> Result<()> {
        for DeferredBlock { block, weight_grads } in deferred {
            let mut params = LayerParams::backward(self.store, block, self.sync);
            let mut grads = weight_grads.into_iter();
            grads.try_for_each(|grad| grad.compute(&self.ctx, &mut params))?;
            self.reduce_grads(block)?;
        }
        Ok(())
    }

    /// Reduces the gradients of a block to which this micro-batch added its contribution.
    fn reduce_grads(&mut self, block: usize) -> Result<()> {
        let spec = &self.model().blocks[block];
        // All of its parameters may be in tiles.
        if spec.is_empty() {
            return Ok(());
        }
        if self.store.grads.is_reduced(self.sync) {
            let grads = self.store.grads.full(block);
            self.device_model.tensor.all_reduce_norm_grads(&self.ctx, spec, grads)?;
        }
        self.store.reduce_grads(block, self.sync)
    }

    fn input_tokens(&self) -> DeviceTokens<'a> {
        self.device_tokens(self.inputs.map(GraphInputs::inputs), self.micro_batch.inputs)
    }

    fn target_tokens(&self) -> DeviceTokens<'a> {
        self.device_tokens(self.inputs.map(GraphInputs::targets), self.micro_batch.targets)
    }

    fn device_tokens(&self, captured: Option<View<'a>>, tokens: &[u32]) -> DeviceTokens<'a> {
        match captured {
            Some(tokens) => DeviceTokens::Captured(tokens),
            None => DeviceTokens::Uploaded(self.ctx.upload(tokens)),
        }
    }

    /// Prefetches the first block of the forward pass.
    pub fn prefetch_first(&mut self) {
        self.device_model.prefetch(self.store, self.blocks.start);
    }

    /// Prefetches the last layer, where the backward pass begins.
    pub fn prefetch_last_layer(&mut self) {
        self.layers().last().into_iter().for_each(|block| self.store.prefetch(block));
    }

    /// The blocks that are layers.
    fn layers(&self) -> Range<usize> {
        self.blocks.start.max(1)..self.blocks.end.min(self.model().head_block())
    }

    /// Whether the chunk begins with the embedding.
    pub fn has_embedding(&self) -> bool {
        self.blocks.start == 0
    }

    /// Whether the chunk ends with the head.
    pub fn has_head(&self) -> bool {
        self.blocks.end > self.model().head_block()
    }

    /// Elements of this rank's rows of the residual stream.
    pub fn residual_len(&self) -> usize {
        self.ctx.local_rows() * self.model().shape.hidden_size
    }
}

impl DeviceModel {
    /// Prefetches a block, and the first tile that its pass needs.
    pub(super) fn prefetch(&self, store: &mut BlockStore, block: usize) {
        store.prefetch(block);
        let table = match block {
            0 => &self.model.embedding.table,
            head if head == self.model.head_block() => &self.model.head.table,
            _ => return,
        };
        table.blocks().take(1).for_each(|first| store.prefetch(first));
    }

    /// The context of a training pass.
    pub(super) fn train_ctx(&self, config: &StepConfig, micro_batch: &MicroBatch) -> PassCtx<'_> {
        let StepConfig { dropout: p, seed, step, recompute, .. } = *config;
        let first_sequence = micro_batch.first_sequence;
        let dropout = Some(Dropout { p, seed, step, first_sequence });
        PassCtx { dropout, recompute, ..self.pass_ctx(micro_batch.batch, micro_batch.seq_len()) }
    }
}
