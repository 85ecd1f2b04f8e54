//! The context of a pass: device, buffers, parallel groups, micro-batch size, dropout.

use std::ops::Range;
use std::sync::Arc;

use super::fp8::Fp8Tensor;
use super::{MaybeOwned, StreamGrad};
use crate::buffer_pool::{BufferPool, PooledTensor};
use crate::model::positions::PositionCache;
use crate::parallel::context::ContextParallel;
use crate::parallel::tensor::TensorParallel;
use regatta_device::ops::{Device, LinearShape, TOKEN_DTYPE};
use regatta_device::random::{self, DropoutMask};
use regatta_device::tensor::{Tensor, ViewMut};

/// The context of a pass of one micro-batch.
#[derive(Clone, Copy)]
pub struct PassCtx<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// Buffers for activations and their gradients.
    pub pool: &'a BufferPool,
    /// Positions in device memory.
    pub positions: &'a PositionCache,
    /// Tensor parallelism.
    pub tensor: &'a TensorParallel,
    /// Context parallelism.
    pub context: &'a ContextParallel,
    /// Sequences of the micro-batch.
    pub batch: usize,
    /// This rank's tokens of each sequence.
    pub seq_len: usize,
    /// Dropout; `None` outside of training.
    pub dropout: Option<Dropout>,
    /// Activation checkpointing: layers save their input only, and recompute the rest.
    pub recompute: bool,
}

impl PassCtx<'_> {
    /// Tokens of the micro-batch on this rank.
    pub fn rows(&self) -> usize {
        self.batch * self.seq_len
    }

    /// Rows of the residual stream on this rank: fewer than `rows` with sequence parallelism.
    pub fn local_rows(&self) -> usize {
        self.tensor.local_rows(self.rows()).len()
    }

    /// Tokens of each sequence over all context-parallel ranks.
    pub fn full_seq_len(&self) -> usize {
        self.seq_len * self.context.shard.ranks
    }

    /// The positions of the tokens of one sequence; with context parallelism, of all rows.
    fn host_positions(&self) -> Vec<u32> {
        let chunks = self.context.chunks(self.context.shard.rank, self.full_seq_len());
        let times = if self.context.is_enabled() { self.batch } else { 1 };
        let repeat = |chunk: Range<usize>| (0..times).flat_map(move |_| chunk.clone());
        chunks.into_iter().flat_map(repeat).map(|position| position as u32).collect()
    }

    /// The positions of the tokens of one sequence, or with context parallelism of all rows, in device
    /// memory.
    pub(super) fn positions(&self) -> Arc<Tensor> {
        let key = (self.batch, self.seq_len);
        self.positions.get(self.device, key, || self.host_positions())
    }

    /// Token ids or positions in device memory.
    pub(crate) fn upload(&self, tokens: &[u32]) -> PooledTensor {
        let mut tensor = self.pool.get(tokens.len(), TOKEN_DTYPE);
        self.device.copy_tokens_from_host(tokens, tensor.view_mut());
        tensor
    }

    /// A buffer for logits. Its contents are arbitrary.
    pub(super) fn logits(&self, elements: usize) -> PooledTensor {
        self.pool.get(elements, self.device.logit_dtype())
    }

    /// A buffer for the residual stream. Its contents are arbitrary.
    pub(crate) fn residual(&self, elements: usize) -> PooledTensor {
        self.pool.get(elements, self.device.residual_dtype())
    }

    /// A buffer for the gradient of the residual stream. Its contents are arbitrary.
    pub(crate) fn residual_grad(&self, elements: usize) -> PooledTensor {
        self.pool.get(elements, self.device.residual_grad_dtype())
    }

    /// A buffer in full precision: softmax and norm statistics, sums. Its contents are arbitrary.
    pub(crate) fn full_precision(&self, elements: usize) -> PooledTensor {
        self.pool.get(elements, self.device.master_dtype())
    }

    /// A buffer for activations. Its contents are arbitrary.
    pub(crate) fn activation(&self, elements: usize) -> PooledTensor {
        self.pool.get(elements, self.device.activation_dtype())
    }

    /// A buffer in the dtype of another tensor. Its contents are arbitrary.
    pub(crate) fn like(&self, other: &Tensor, elements: usize) -> PooledTensor {
        self.pool.get(elements, other.dtype())
    }

    /// The gradient of rows to which dropout was applied, for a GEMM.
    pub(super) fn dropout_grad<'t>(
        &self,
        site: DropoutSite,
        width: usize,
        grad: &'t mut StreamGrad,
    ) -> MaybeOwned<'t> {
        let operand = grad.gemm_operand(self);
        if !self.has_dropout() {
            return MaybeOwned::Borrowed(operand);
        }
        let mut dropped = self.like(operand, operand.len());
        self.device.copy(operand.view(), dropped.view_mut());
        self.apply_dropout(site, width, dropped.view_mut());
        MaybeOwned::Owned(dropped)
    }

    /// A buffer for the column sums of the gradient of the residual stream, if norms sum them and they
    /// are the gradients of biases: with dropout and sequence parallelism, these have other rows.
    pub(super) fn column_sums(&self, hidden_size: usize) -> Option<PooledTensor> {
        let is_gradient = !self.tensor.sequence_parallel && !self.has_dropout();
        let is_wanted = is_gradient && self.device.norms_sum_columns();
        is_wanted.then(|| self.full_precision(hidden_size))
    }

    /// Buffers for the gradient of the residual stream in fp8, if GEMMs read it as it is: not with dropout or
    /// sequence parallelism.
    pub(super) fn stream_grad_fp8(&self, elements: usize, hidden: usize) -> Option<Fp8Tensor> {
        let shape = LinearShape { rows: elements / hidden, inputs: hidden, outputs: hidden };
        let is_operand = !self.tensor.sequence_parallel && !self.has_dropout();
        (is_operand && self.device.supports_fp8(shape))
            .then(|| Fp8Tensor::new(self, shape.rows, hidden))
    }

    fn has_dropout(&self) -> bool {
        self.dropout.is_some_and(|dropout| dropout.p > 0.0)
    }

    /// Applies dropout to this rank's rows of the residual stream.
    pub(super) fn apply_dropout(&self, site: DropoutSite, width: usize, mut x: ViewMut<'_>) {
        let Some(mask) = self.residual_mask(site, width) else { return };
        for RowSpan { local, first } in self.row_spans() {
            let first = mask.offset + (first * width) as u64;
            let elements = local.start * width..local.end * width;
            self.device.dropout(DropoutMask { offset: first, ..mask }, x.slice(elements));
        }
    }

    /// This rank's rows of the residual stream as contiguous spans of the micro-batch's.
    fn row_spans(&self) -> Vec<RowSpan> {
        let rows = self.tensor.local_rows(self.rows());
        let first_row = rows.start;
        if !self.context.is_enabled() {
            return vec![RowSpan { local: 0..rows.len(), first: first_row }];
        }
        let mut spans: Vec<RowSpan> = Vec::new();
        let positions = self.host_positions();
        let chunk_len = self.seq_len / 2;
        for row in rows {
            let sequence = row / chunk_len % self.batch;
            let first = sequence * self.full_seq_len() + positions[row] as usize;
            match spans.last_mut() {
                Some(span) if span.first + span.local.len() == first => span.local.end += 1,
                _ => spans.push(RowSpan { local: row - first_row..row - first_row + 1, first }),
            }
        }
        spans
    }

    /// The dropout mask of a site in the residual stream.
    pub(super) fn residual_mask(&self, site: DropoutSite, width: usize) -> Option<DropoutMask> {
        self.dropout_mask(site, self.full_seq_len() * width)
    }

    /// The dropout mask of a site with `per_sequence` elements per sequence.
    pub(super) fn dropout_mask(
        &self,
        site: DropoutSite,
        per_sequence: usize,
    ) -> Option<DropoutMask> {
        let Dropout { p, seed, step, first_sequence } = self.dropout?;
        let key = random::key(seed, &[DROPOUT_STREAM, step, site.block as u64, site.index]);
        (p > 0.0).then_some(DropoutMask { p, key, offset: first_sequence * per_sequence as u64 })
    }
}

/// Contiguous rows.
struct RowSpan {
    /// Among this rank's rows.
    local: Range<usize>,
    /// The first one among the rows of full sequences.
    first: usize,
}

/// Random stream of dropout masks.
const DROPOUT_STREAM: u64 = 0x6472_6f70;

/// Where in the model dropout is applied: part of the key of its mask.
#[derive(Debug, Clone, Copy)]
pub(super) struct DropoutSite {
    block: usize,
    index: u64,
}

impl DropoutSite {
    pub const EMBEDDING: Self = Self { block: 0, index: 0 };

    pub fn attention_weights(block: usize) -> Self {
        Self { block, index: 0 }
    }

    pub fn attention_output(block: usize) -> Self {
        Self { block, index: 1 }
    }

    pub fn mlp_output(block: usize) -> Self {
        Self { block, index: 2 }
    }
}

/// Dropout of a micro-batch. Masks depend on the step and on a sequence's index in the step only, so
/// that they do not depend on how sequences are distributed over ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Dropout probability.
    pub p: f32,
    /// Random seed of the training.
    pub seed: u64,
    /// The step.
    pub step: u64,
    /// Index of the micro-batch's first sequence in the step.
    pub first_sequence: u64,
}
