//! A model on a device.

use std::sync::Arc;
use std::time::Duration;

use super::{MicroBatch, Result};
use crate::buffer_pool::BufferPool;
use crate::model::{Model, PassCtx, ResidentParams};
use crate::parallel::ProcessGroups;
use crate::parallel::context::ContextParallel;
use crate::parallel::tensor::TensorParallel;
use regatta_device::ops::Device;
use regatta_device::tensor::View;
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
    pool: BufferPool,
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

    fn on_device(tensor: TensorParallel, model: Model, device: Arc<dyn Device>) -> Self {
        let pool = BufferPool::new(device.clone());
        Self { model, device, tensor, context: ContextParallel::disabled(), pool }
    }

    /// Peak memory of activations and their gradients, in bytes.
    pub fn activation_bytes(&self) -> usize {
        self.pool.peak_bytes()
    }

    /// Frees unused activation buffers, before passes of another size.
    pub fn trim_buffers(&self) {
        self.pool.trim();
    }

    /// Returns the time that passes were blocked on tensor- and context-parallel ranks, and resets it.
    pub(super) fn take_wait_time(&self) -> Duration {
        self.tensor.wait_time.take() + self.context.wait_time.take()
    }

    /// The context of a pass over `batch` sequences, of which this rank has `seq_len` tokens each.
    pub fn pass_ctx(&self, batch: usize, seq_len: usize) -> PassCtx<'_> {
        let Self { device, pool, tensor, context, .. } = self;
        let (device, dropout, recompute) = (&**device, None, false);
        PassCtx { device, pool, tensor, context, batch, seq_len, dropout, recompute }
    }

    /// The sum of the losses of a micro-batch, with the given parameters of all blocks.
    pub fn loss(&self, params: &[View<'_>], micro_batch: &MicroBatch<'_>) -> Result<f64> {
        let model = &self.model;
        let MicroBatch { inputs, targets, batch, .. } = *micro_batch;
        // Recomputation: no activations are saved.
        let ctx = PassCtx { recompute: true, ..self.pass_ctx(batch, micro_batch.seq_len()) };
        let params_of = |block| ResidentParams { all: params, block };
        let mut x = model.embedding.forward(&ctx, &mut params_of(0), inputs)?;
        for block in 1..model.head_block() {
            x = model.layer(block).forward(&ctx, &mut params_of(block), x)?.0;
        }
        model.head.loss(&ctx, &mut params_of(model.head_block()), &x, targets)
    }
}
