//! Token and position embeddings: the first block.

use std::ops::Range;

use super::pass_ctx::DropoutSite;
use super::{Params, ParamsAndGrads, PassCtx, VocabTable};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::ops::{EmbeddingBackwardArgs, PositionBackwardArgs};
use regatta_device::random::DropoutMask;
use regatta_device::tensor::View;
use regatta_predict::shape::{Matrices, ModelShape, Module, ParamKind, ParamSpec};

/// The embedding.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// The token embedding, which a tied head shares.
    pub table: VocabTable,
    positions: Option<Range<usize>>,
    hidden_size: usize,
}

impl Embedding {
    pub(super) fn new(shape: &ModelShape, of: &Matrices<'_>) -> Self {
        let positions = of.block.param(Module::PositionEmbedding, ParamKind::Weight);
        Self {
            table: VocabTable::new(shape, 0, of, Module::TokenEmbedding),
            positions: positions.map(ParamSpec::range),
            hidden_size: shape.hidden_size,
        }
    }

    /// `x = tokens[token] + positions[position]`.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        tokens: View<'_>,
    ) -> Result<PooledTensor> {
        let partial = self.embed(ctx, params, tokens, ctx.positions().view())?;
        let mut x = ctx.tensor.reduce_scatter_rows(ctx, partial)?;
        ctx.apply_dropout(DropoutSite::EMBEDDING, self.hidden_size, x.view_mut());
        Ok(x)
    }

    /// The dropout mask of a training pass.
    pub(super) fn dropout_mask(&self, ctx: &PassCtx) -> Option<DropoutMask> {
        ctx.residual_mask(DropoutSite::EMBEDDING, self.hidden_size)
    }

    /// The embedding of one token in decoding.
    pub fn decode(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        token: u32,
        position: usize,
    ) -> Result<PooledTensor> {
        let [token, position] = [token, position as u32].map(|id| ctx.upload(&[id]));
        self.embed(ctx, params, token.view(), position.view())
    }

    /// This rank's part of the sum of all embeddings. `positions` are those of one sequence, or of all
    /// rows.
    fn embed(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        tokens: View<'_>,
        positions: View<'_>,
    ) -> Result<PooledTensor> {
        let mut x = ctx.residual(tokens.len() * self.hidden_size);
        for tile in self.table.tiles() {
            self.table.unshard(params, tile)?;
            let (first, table) = (self.table.tokens(tile).start, self.table.tile(params, tile));
            if tile == 0 {
                ctx.device.embedding(tokens, first, table, x.view_mut());
            } else {
                // Each token is in one tile; its rows of the other tiles are zero.
                let mut rows = ctx.like(&x, x.len());
                ctx.device.embedding(tokens, first, table, rows.view_mut());
                ctx.device.add_assign(rows.view(), x.view_mut());
            }
            self.table.reshard(params, tile);
        }
        // The rows are summed over the tensor-parallel group: one rank only adds the positions.
        if let Some(range) = self.positions.clone().filter(|_| ctx.tensor.shard.rank == 0) {
            let table = params.block().slice(range);
            ctx.device.add_position_embedding(self.hidden_size, positions, table, x.view_mut());
        }
        Ok(x)
    }

    /// Accumulates the gradients of the embeddings.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        tokens: View<'_>,
        mut dx: PooledTensor,
    ) -> Result<()> {
        ctx.apply_dropout(DropoutSite::EMBEDDING, self.hidden_size, dx.view_mut());
        let dx = ctx.tensor.all_gather_rows(ctx, dx)?;
        for tile in self.table.tiles() {
            let (first, dtable) = (self.table.tokens(tile).start, self.table.grads(params, tile));
            let dy = dx.view();
            ctx.device.embedding_backward(EmbeddingBackwardArgs { tokens, first, dy, dtable });
            self.table.reduce_grads(params, tile)?;
        }
        if let Some(range) = self.positions.clone() {
            let mut grads = params.grads();
            let positions = ctx.positions();
            ctx.device.position_embedding_backward(PositionBackwardArgs {
                dim: self.hidden_size,
                positions: positions.view(),
                dy: dx.view(),
                dtable: grads.slice(range),
            });
        }
        Ok(())
    }
}
