//! A model on a device.

use std::sync::Arc;
use std::time::Duration;

use super::{MicroBatch, Result};
use crate::buffer_pool::{BufferPool, PooledTensor};
use crate::model::{Model, PassCtx, PositionCache, ResidentParams, Residual};
use crate::parallel::ProcessGroups;
use crate::parallel::context::ContextParallel;
use crate::parallel::tensor::TensorParallel;
use regatta_device::ops::{Device, SCALAR_DTYPE};
use regatta_device::tensor::{Tensor, View};
use regatta_predict::shape::ModelShape;

/// A model on a device, with its intra-layer parallelism.
pub struct DeviceModel {
    /// The model.
    pub model: Model,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Tensor parallelism.
    pub tensor: TensorParallel,
    /// Context parallelism.
    pub context: ContextParallel,
    /// Buffers of activations.
    pub pool: BufferPool,
    positions: PositionCache,
}

impl DeviceModel {
    /// An unsharded model.
    pub fn new(model: Model, device: Box<dyn Device>) -> Self {
        Self::on_device(TensorParallel::disabled(), model, device.into())
    }

    /// This rank's shard of a model with tensor and context parallelism, each matrix in `tiles` tiles.
    pub fn parallel(
        shape: ModelShape,
        groups: &ProcessGroups,
        sequence_parallel: bool,
        tiles: usize,
        device: Box<dyn Device>,
    ) -> Self {
        let tensor = TensorParallel::new(groups.tensor.clone(), sequence_parallel);
        let model = Model::tiled(shape, tensor.shard, tiles);
        let shard = groups.coord.context_shard(&groups.mesh);
        let context = ContextParallel::new(groups.context_ring.clone(), shard);
        Self { context, ..Self::on_device(tensor, model, device.into()) }
    }

    /// Another, unsharded model on the same device.
    pub fn unsharded(&self, model: Model) -> Self {
        Self::on_device(TensorParallel::disabled(), model, self.device.clone())
    }

    fn on_device(tensor: TensorParallel, mut model: Model, device: Arc<dyn Device>) -> Self {
        let logits = &mut model.head.logit_chunks;
        if device.pads_logits() {
            *logits = logits.with_padding();
        }
        if let Some(max_logits) = device.max_logits() {
            *logits = logits.with_max_logits(max_logits);
        }
        let (pool, positions) = (BufferPool::new(device.clone()), PositionCache::default());
        Self { model, device, tensor, context: ContextParallel::disabled(), pool, positions }
    }

    /// A scalar in device memory, 0.
    pub(super) fn scalar(&self) -> PooledTensor {
        let mut scalar = self.pool.get(1, SCALAR_DTYPE);
        self.device.zero(scalar.view_mut());
        scalar
    }

    /// The value of a scalar.
    pub(super) fn read_scalar(&self, scalar: &Tensor) -> Result<f64> {
        let values = self.device.read_scalars(scalar.view())?;
        Ok(values.first().copied().unwrap_or(0.0))
    }

    /// Returns the time that passes were blocked on tensor- and context-parallel ranks, and resets it.
    pub(super) fn take_wait_time(&self) -> Duration {
        self.tensor.wait_time.take() + self.context.wait_time.take()
    }

    /// The context of a pass over `batch` sequences, of which this rank has `seq_len` tokens each.
    pub fn pass_ctx(&self, batch: usize, seq_len: usize) -> PassCtx<'_> {
        let Self { device, pool, positions, tensor, context, .. } = self;
        let (device, dropout, recompute) = (&**device, None, false);
        PassCtx { device, pool, positions, tensor, context, batch, seq_len, dropout, recompute }
    }

    /// The sum of the losses of a micro-batch, with the given parameters of all blocks.
    pub fn loss(&self, params: &[View<'_>], micro_batch: &MicroBatch<'_>) -> Result<f64> {
        let model = &self.model;
        let MicroBatch { inputs, targets, batch, .. } = *micro_batch;
        // Recomputation: no activations are saved.
        let ctx = PassCtx { recompute: true, ..self.pass_ctx(batch, micro_batch.seq_len()) };
        let params_of = |block| ResidentParams { all: params, block };
        let [inputs, targets] = [inputs, targets].map(|tokens| ctx.upload(tokens));
        let x = model.embedding.forward(&ctx, &mut params_of(0), inputs.view())?;
        let mut x = Residual::new(x);
        for block in 1..model.head_block() {
            x = model.layer(block).forward(&ctx, &mut params_of(block), x)?.0;
        }
        let (mut loss, head) = (self.scalar(), &mut params_of(model.head_block()));
        model.head.loss(&ctx, head, x, targets.view(), loss.view_mut())?;
        self.read_scalar(&loss)
    }
}
