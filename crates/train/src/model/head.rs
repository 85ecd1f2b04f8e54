//! The LM head: final norm, output layer and cross-entropy loss.
//!
//! Logits are far larger than the residual stream. They are computed and consumed for a chunk of rows
//! at a time, together with their gradients, so that they never exist as a whole: the loss and the
//! first step of the backward pass are fused.
//!
//! A tiled output matrix is processed one tile at a time, each for all rows, in two rounds: a row's
//! softmax statistics must be complete before any of its logits has a gradient. Logits are recomputed
//! in the second round rather than stored.

use std::ops::Range;

use super::fp8_head::Fp8Head;
use super::norm::{NormLayer, Normed};
use super::{Params, ParamsAndGrads, PassCtx, Residual, StreamGrad, VocabTable};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartialsArgs, LinearArgs,
    LinearBackwardInputArgs, LinearBackwardWeightArgs,
};
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_predict::logit_chunks::{LogitChunks, PARTIALS_PER_ROW};
use regatta_predict::shape::{Matrices, ModelShape, Module};

/// The head.
#[derive(Debug, Clone)]
pub struct LmHead {
    norm: NormLayer,
    /// The output layer, which may be tied to the token embedding.
    pub table: VocabTable,
    hidden_size: usize,
    /// The chunks in which logits are computed.
    pub logit_chunks: LogitChunks,
}

/// The rows of a micro-batch after the final norm, and their target tokens.
#[derive(Clone, Copy)]
struct HeadInput<'a> {
    normed: &'a Tensor,
    targets: View<'a>,
}

/// A block of the logits: a chunk of rows for the tokens of a tile.
#[derive(Clone)]
struct LogitChunk<'a> {
    normed: &'a Tensor,
    rows: Range<usize>,
    tile: usize,
}

/// The loss of a step: a sum in device memory, and the factor of its gradients.
#[derive(Debug)]
pub struct ScaledLoss<'a> {
    /// A scalar to which losses are added.
    pub sum: ViewMut<'a>,
    /// Factor of the gradients.
    pub grad_scale: f64,
}

/// Whether the gradient round follows the statistics round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gradients {
    Needed,
    NotNeeded,
}

impl LmHead {
    /// A head with an output layer of its own, or tied to the token embedding.
    pub(super) fn new(
        shape: &ModelShape,
        of: &Matrices<'_>,
        tied: Option<&VocabTable>,
        logit_chunks: LogitChunks,
    ) -> Self {
        let own = || VocabTable::new(shape, shape.num_layers + 1, of, Module::LmHead);
        Self {
            norm: NormLayer::new(shape, of.block, Module::FinalNorm),
            table: tied.cloned().unwrap_or_else(own),
            hidden_size: shape.hidden_size,
            logit_chunks,
        }
    }

    /// Adds the cross-entropy losses to the scalar `loss`, without gradients.
    pub fn loss(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: Residual,
        targets: View<'_>,
        mut loss: ViewMut<'_>,
    ) -> Result<()> {
        let Normed { normed, .. } = self.final_norm(ctx, params, x)?;
        let input = HeadInput { normed: &normed, targets };
        if self.table.is_tiled() {
            return self.softmax_stats(ctx, params, input, Gradients::NotNeeded, loss).map(drop);
        }
        let mut buffer = self.logit_buffer(ctx);
        self.table.unshard(params, 0)?;
        for rows in self.logit_chunks.ranges(ctx.rows()) {
            let chunk = LogitChunk { normed: &normed, rows: rows.clone(), tile: 0 };
            let mut logits = self.chunk_logits(ctx, params, chunk, &mut buffer);
            let targets = input.targets.slice(rows);
            self.cross_entropy(ctx, targets, &mut logits, None, loss.reborrow())?;
        }
        self.table.reshard(params, 0);
        Ok(())
    }

    /// The loss, which is added to a scalar, and its gradient: parameter gradients are accumulated, that
    /// of the residual stream is returned.
    pub fn loss_and_grads(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: Residual,
        targets: View<'_>,
        loss: ScaledLoss<'_>,
    ) -> Result<StreamGrad> {
        let Normed { x, normed, stats, .. } = self.final_norm(ctx, params, x)?;
        let mut dnormed = ctx.activation(ctx.rows() * self.hidden_size);
        let input = HeadInput { normed: &normed, targets };
        match self.table.is_tiled() {
            true => self.tiled_loss_and_grads(ctx, params, input, loss, &mut dnormed)?,
            false => self.fused_loss_and_grads(ctx, params, input, loss, &mut dnormed)?,
        }
        let dnormed = ctx.tensor.reduce_scatter_rows(ctx, dnormed)?;
        let mut dx = ctx.residual_grad(x.len());
        ctx.device.zero(dx.view_mut());
        let mut grad = StreamGrad::new(dx);
        self.norm.backward(ctx, params, &x, &stats, &dnormed, &mut grad);
        Ok(grad)
    }

    /// Loss and gradients in one round over chunks of rows.
    fn fused_loss_and_grads(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        input: HeadInput<'_>,
        loss: ScaledLoss<'_>,
        dnormed: &mut Tensor,
    ) -> Result<()> {
        let HeadInput { normed, targets } = input;
        let ScaledLoss { mut sum, grad_scale } = loss;
        let mut buffer = self.logit_buffer(ctx);
        self.table.unshard(params, 0)?;
        let fp8 = Fp8Head::new(ctx, params, &self.table);
        for rows in self.logit_chunks.ranges(ctx.rows()) {
            let chunk = LogitChunk { normed, rows: rows.clone(), tile: 0 };
            if let Some(fp8) = &fp8 {
                let (targets, elements) = (targets.slice(rows.clone()), self.elements(rows));
                let x = normed.view().slice(elements.clone());
                let loss = ScaledLoss { sum: sum.reborrow(), grad_scale };
                let mut dnormed = dnormed.view_mut();
                let dx = dnormed.slice(elements);
                let dlogits = fp8.loss_and_input_grad(ctx, x, targets, loss, &mut buffer, dx);
                self.backward_weight(ctx, params, chunk, dlogits);
                continue;
            }
            let mut logits = self.chunk_logits(ctx, params, chunk.clone(), &mut buffer);
            let (targets, sum) = (targets.slice(rows), sum.reborrow());
            self.cross_entropy(ctx, targets, &mut logits, Some(grad_scale), sum)?;
            self.backward_chunk(ctx, params, chunk, logits.view(), dnormed);
        }
        self.table.reshard(params, 0);
        self.table.reduce_grads(params, 0)
    }

    /// Softmax statistics in a first round over all tiles, gradients in a second.
    fn tiled_loss_and_grads(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        input: HeadInput<'_>,
        loss: ScaledLoss<'_>,
        dnormed: &mut Tensor,
    ) -> Result<()> {
        let ScaledLoss { sum, grad_scale } = loss;
        let stats = self.softmax_stats(ctx, params, input, Gradients::Needed, sum)?;
        let HeadInput { normed, targets } = input;
        let mut buffer = self.logit_buffer(ctx);
        for tile in self.table.tiles() {
            self.table.unshard(params, tile)?;
            for rows in self.logit_chunks.ranges(ctx.rows()) {
                let chunk = LogitChunk { normed, rows: rows.clone(), tile };
                let mut logits = self.chunk_logits(ctx, params, chunk.clone(), &mut buffer);
                ctx.device.cross_entropy_backward(CrossEntropyBackwardArgs {
                    merged: stats.view().slice(stats_range(0, &rows)),
                    targets: targets.slice(rows),
                    vocab: self.table.tokens(tile),
                    logits: logits.reborrow(),
                    grad_scale,
                });
                self.backward_chunk(ctx, params, chunk, logits.view(), dnormed);
            }
            self.table.reshard(params, tile);
            self.table.reduce_grads(params, tile)?;
        }
        Ok(())
    }

    /// Backward pass of the output layer for a chunk of the logits. The first tile overwrites the rows
    /// of `dnormed`, the others add to them.
    fn backward_chunk(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        chunk: LogitChunk<'_>,
        dlogits: View<'_>,
        dnormed: &mut Tensor,
    ) {
        let LogitChunk { rows, tile, .. } = chunk.clone();
        let shape = self.table.gemm_shape(ctx.device, tile, rows.len());
        ctx.device.linear_backward_input(LinearBackwardInputArgs {
            shape,
            dy: dlogits,
            weight: self.table.gemm_weight(params, tile, shape),
            dx: dnormed.view_mut().slice(self.elements(rows)),
            accumulate: tile > 0,
        });
        self.backward_weight(ctx, params, chunk, dlogits);
    }

    /// Accumulates the weight gradient of the output layer for a chunk of the logits.
    fn backward_weight(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        chunk: LogitChunk<'_>,
        dlogits: View<'_>,
    ) {
        let LogitChunk { normed, rows, tile } = chunk;
        let shape = self.table.gemm_shape(ctx.device, tile, rows.len());
        ctx.device.linear_backward_weight(LinearBackwardWeightArgs {
            shape,
            x: normed.view().slice(self.elements(rows)),
            dy: dlogits,
            dweight: self.table.gemm_weight_grads(params, tile, shape),
            dbias: None,
        });
    }

    /// Softmax statistics of all rows over the full vocabulary, tile by tile. Their losses are added to
    /// `loss`.
    fn softmax_stats(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        input: HeadInput<'_>,
        gradients: Gradients,
        loss: ViewMut<'_>,
    ) -> Result<PooledTensor> {
        let HeadInput { normed, targets } = input;
        let (mut buffer, all_rows) = (self.logit_buffer(ctx), ctx.rows());
        let tiles = self.table.tiles().len();
        let mut partials = ctx.full_precision(tiles * PARTIALS_PER_ROW * all_rows);
        for tile in self.table.tiles() {
            self.table.unshard(params, tile)?;
            if gradients == Gradients::Needed && tile + 1 == tiles {
                self.table.prefetch(params);
            }
            for rows in self.logit_chunks.ranges(all_rows) {
                let chunk = LogitChunk { normed, rows: rows.clone(), tile };
                let logits = self.chunk_logits(ctx, params, chunk, &mut buffer);
                ctx.device.cross_entropy_partials(CrossEntropyPartialsArgs {
                    partials: partials.view_mut().slice(stats_range(tile * all_rows, &rows)),
                    targets: targets.slice(rows),
                    vocab: self.table.tokens(tile),
                    logits: logits.view(),
                });
            }
            self.table.reshard(params, tile);
        }
        let mut per_row = ctx.full_precision(PARTIALS_PER_ROW * all_rows);
        let is_sharded = ctx.tensor.shard.ranks > 1;
        let (merged, mut loss) = (per_row.view_mut(), Some(loss));
        let complete = loss.take_if(|_| !is_sharded);
        ctx.device.merge_cross_entropy_partials(partials.view(), merged, complete);
        match loss {
            Some(loss) => self.merge_vocab_shards(ctx, per_row, loss),
            None => Ok(per_row),
        }
    }

    /// Merges the softmax statistics of the tensor-parallel ranks' vocabulary shards.
    fn merge_vocab_shards(
        &self,
        ctx: &PassCtx,
        local: PooledTensor,
        loss: ViewMut<'_>,
    ) -> Result<PooledTensor> {
        let mut per_row = ctx.full_precision(local.len());
        let partials = ctx.tensor.all_gather(ctx, local)?;
        let merged = per_row.view_mut();
        ctx.device.merge_cross_entropy_partials(partials.view(), merged, Some(loss));
        Ok(per_row)
    }

    /// Vocab-parallel cross-entropy of a chunk of rows. With `grad_scale`, the logits become their
    /// gradient.
    fn cross_entropy(
        &self,
        ctx: &PassCtx,
        targets: View<'_>,
        logits: &mut ViewMut<'_>,
        grad_scale: Option<f64>,
        loss: ViewMut<'_>,
    ) -> Result<()> {
        let (device, vocab) = (ctx.device, self.table.tokens(0));
        if ctx.tensor.shard.ranks == 1 {
            let (vocab, logits) = (vocab.len(), logits.reborrow());
            device.cross_entropy(CrossEntropyArgs { targets, vocab, logits, grad_scale, loss });
            return Ok(());
        }
        let mut local = ctx.full_precision(PARTIALS_PER_ROW * targets.len());
        device.cross_entropy_partials(CrossEntropyPartialsArgs {
            targets,
            vocab: vocab.clone(),
            logits: logits.view(),
            partials: local.view_mut(),
        });
        let per_row = self.merge_vocab_shards(ctx, local, loss)?;
        if let Some(grad_scale) = grad_scale {
            let (merged, logits) = (per_row.view(), logits.reborrow());
            let args = CrossEntropyBackwardArgs { targets, vocab, merged, logits, grad_scale };
            device.cross_entropy_backward(args);
        }
        Ok(())
    }

    /// The logits of some rows.
    pub fn logits(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: Residual,
        rows: Range<usize>,
    ) -> Result<PooledTensor> {
        let Normed { normed, .. } = self.final_norm(ctx, params, x)?;
        let vocab_size = self.table.local_rows();
        let mut logits = ctx.full_precision(rows.len() * vocab_size);
        let mut buffer = ctx.logits(rows.len() * self.logit_chunks.columns);
        for tile in self.table.tiles() {
            self.table.unshard(params, tile)?;
            let chunk = LogitChunk { normed: &normed, rows: rows.clone(), tile };
            let tile_logits = self.chunk_logits(ctx, params, chunk, &mut buffer);
            let (from, to) = (tile_logits.view(), logits.view_mut());
            match self.table.is_tiled() {
                true => {
                    let columns = self.table.tile_rows(tile);
                    ctx.device.copy_to_columns(from, to, vocab_size, columns);
                }
                // Without the padding.
                false => {
                    let size = self.table.gemm_shape(ctx.device, tile, rows.len());
                    ctx.device.copy_from_columns(from, size.outputs, 0..vocab_size, to);
                }
            }
            self.table.reshard(params, tile);
        }
        Ok(logits)
    }

    /// All rows after the final norm, and the input and the norm statistics of the local ones.
    fn final_norm(&self, ctx: &PassCtx, params: &dyn Params, x: Residual) -> Result<Normed> {
        let out = self.norm.forward_with(ctx, params.block(), x, false);
        Ok(Normed { normed: ctx.tensor.all_gather_rows(ctx, out.normed)?, ..out })
    }

    /// Computes a chunk of the logits in `buffer`.
    fn chunk_logits<'b>(
        &self,
        ctx: &PassCtx,
        params: &dyn Params,
        chunk: LogitChunk<'_>,
        buffer: &'b mut Tensor,
    ) -> ViewMut<'b> {
        let LogitChunk { normed, rows, tile } = chunk;
        let size = self.table.gemm_shape(ctx.device, tile, rows.len());
        let (mut logits, _) = buffer.view_mut().split_at(size.rows * size.outputs);
        let x = normed.view().slice(self.elements(rows));
        let weight = self.table.gemm_weight(params, tile, size);
        let (shape, y) = (size, logits.reborrow());
        ctx.device.linear(LinearArgs { shape, x, weight, bias: None, y });
        logits
    }

    /// A buffer for the logits of a chunk of rows.
    fn logit_buffer(&self, ctx: &PassCtx) -> PooledTensor {
        ctx.logits(self.logit_chunks.len(ctx.rows()))
    }

    /// The elements of rows of hidden states.
    fn elements(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.hidden_size..rows.end * self.hidden_size
    }
}

/// The softmax statistics of rows behind `first`.
fn stats_range(first: usize, rows: &Range<usize>) -> Range<usize> {
    PARTIALS_PER_ROW * (first + rows.start)..PARTIALS_PER_ROW * (first + rows.end)
}
