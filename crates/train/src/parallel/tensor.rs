//! Megatron-style tensor parallelism: column-parallel linear layers shard their outputs, row-parallel
//! ones their inputs, so that no communication is needed between the two.
//!
//! With sequence parallelism the ranks also shard the rows of the residual stream outside of the
//! linear layers: an all-gather before a column-parallel layer, a reduce-scatter after a row-parallel
//! one. Without it every rank has all rows, and the outputs of row-parallel layers are all-reduced. The
//! backward pass mirrors this: all-gather and reduce-scatter swap places.

use std::ops::Range;

use regatta_comm::{CallKind, Comm, Counts, OwnedCall, ReduceOp};

use super::{ProcessGroup, Result, WaitTime, collective};
use crate::buffer_pool::PooledTensor;
use crate::model::{MaybeOwned, PassCtx};
use regatta_device::tensor::{Tensor, ViewMut};
use regatta_predict::shape::{ParamBlock, Shard};

/// A rank of a tensor-parallel group.
#[derive(Clone)]
pub struct TensorParallel {
    group: ProcessGroup,
    /// This rank's shard of the matrices.
    pub shard: Shard,
    /// Whether the rows of the residual stream are sharded, too.
    pub sequence_parallel: bool,
    /// Time blocked on the group.
    pub wait_time: WaitTime,
}

impl TensorParallel {
    /// No tensor parallelism.
    pub fn disabled() -> Self {
        let (shard, wait_time) = (Shard::UNSHARDED, WaitTime::default());
        Self { group: None, shard, sequence_parallel: false, wait_time }
    }

    /// Tensor parallelism over a group.
    pub fn new(group: ProcessGroup, sequence_parallel: bool) -> Self {
        let Some(comm) = &group else { return Self::disabled() };
        let shard = Shard { rank: comm.rank() as usize, ranks: comm.size() as usize };
        Self { group, shard, sequence_parallel, wait_time: WaitTime::default() }
    }

    /// This rank's rows of the residual stream.
    pub fn local_rows(&self, rows: usize) -> Range<usize> {
        if self.sequence_parallel { self.shard.range(rows) } else { 0..rows }
    }

    /// All-gathers sequence-parallel rows before a column-parallel layer.
    pub fn all_gather_rows(&self, ctx: &PassCtx, local: PooledTensor) -> Result<PooledTensor> {
        if self.sequence_parallel { self.all_gather(ctx, local) } else { Ok(local) }
    }

    /// Concatenates the tensors of all ranks.
    pub fn all_gather(&self, ctx: &PassCtx, local: PooledTensor) -> Result<PooledTensor> {
        let Some(comm) = &self.group else { return Ok(local) };
        let full = ctx.like(&local, local.len() * self.shard.ranks);
        self.wait_time.measure(|| collective(ctx, &**comm, CallKind::AllGather, local, full))
    }

    /// Sums the partial outputs of a row-parallel layer: reduce-scatter to the local rows with sequence
    /// parallelism, else all-reduce.
    pub fn reduce_scatter_rows(
        &self,
        ctx: &PassCtx,
        partial: PooledTensor,
    ) -> Result<PooledTensor> {
        match &self.group {
            None => Ok(partial),
            Some(comm) if self.sequence_parallel => {
                let local = ctx.like(&partial, partial.len() / self.shard.ranks);
                self.wait_time
                    .measure(|| collective(ctx, &**comm, CallKind::ReduceScatter, partial, local))
            }
            Some(comm) => self.wait_time.measure(|| all_reduce(ctx, &**comm, partial)),
        }
    }

    /// All-gathers the rows of an output gradient before the backward pass of a row-parallel layer.
    pub fn all_gather_grad_rows<'t>(
        &self,
        ctx: &PassCtx,
        local: MaybeOwned<'t>,
    ) -> Result<MaybeOwned<'t>> {
        if !self.sequence_parallel {
            return Ok(local);
        }
        let mut rows = ctx.activation(local.len());
        ctx.device.copy(local.view(), rows.view_mut());
        self.all_gather_rows(ctx, rows).map(MaybeOwned::Owned)
    }

    /// All-reduces the norm gradients of a block: with sequence parallelism each rank has those of its
    /// own rows only.
    pub fn all_reduce_norm_grads(
        &self,
        ctx: &PassCtx,
        block: &ParamBlock,
        mut grads: ViewMut<'_>,
    ) -> Result<()> {
        let Some(comm) = self.group.as_ref().filter(|_| self.sequence_parallel) else {
            return Ok(());
        };
        let norms = || block.parameters.iter().filter(|param| param.role.module.is_norm());
        let mut bucket = ctx.full_precision(norms().map(|norm| norm.len()).sum());
        let mut offset = 0;
        for norm in norms() {
            let (norm_grads, mut bucket) = (grads.slice(norm.range()), bucket.view_mut());
            ctx.device.copy(norm_grads.view(), bucket.slice(offset..offset + norm.len()));
            offset += norm.len();
        }
        let bucket = self.wait_time.measure(|| all_reduce(ctx, &**comm, bucket))?;
        let mut offset = 0;
        for norm in norms() {
            let reduced = bucket.view().slice(offset..offset + norm.len());
            ctx.device.copy(reduced, grads.slice(norm.range()));
            offset += norm.len();
        }
        Ok(())
    }
}

/// Sums a tensor over all ranks.
pub fn all_reduce(ctx: &PassCtx, comm: &dyn Comm, tensor: PooledTensor) -> Result<PooledTensor> {
    let (tensor, slot) = tensor.take();
    Ok(slot.fill(all_reduce_tensor(ctx, comm, tensor)?))
}

/// All-reduces a tensor that is not pooled.
pub fn all_reduce_tensor(ctx: &PassCtx, comm: &dyn Comm, tensor: Tensor) -> Result<Tensor> {
    let dtype = tensor.dtype();
    let call = OwnedCall::all_reduce(dtype, ReduceOp::Sum, tensor.into_buffer());
    let call = collective::run(ctx.device, comm, call)?;
    Ok(Tensor::from_buffer(call.output, dtype))
}

/// All-reduces a view in place, through a pooled buffer that the collective can own.
pub fn all_reduce_view(comm: &dyn Comm, ctx: &PassCtx, mut elements: ViewMut<'_>) -> Result<()> {
    let mut copy = ctx.full_precision(elements.len());
    ctx.device.copy(elements.view(), copy.view_mut());
    let sum = all_reduce(ctx, comm, copy)?;
    ctx.device.copy(sum.view(), elements.reborrow());
    Ok(())
}

/// Runs a collective from `input` to `output`, and returns `input` to its pool.
fn collective(
    ctx: &PassCtx,
    comm: &dyn Comm,
    kind: CallKind,
    input: PooledTensor,
    output: PooledTensor,
) -> Result<PooledTensor> {
    let counts = Counts::Equal(input.len().min(output.len()));
    let ((input, input_slot), (output, output_slot)) = (input.take(), output.take());
    let dtype = output.dtype();
    let mut call = OwnedCall::new(kind, dtype, counts, output.into_buffer());
    call.input = Some(input.into_buffer());
    let call = collective::run(ctx.device, comm, call)?;
    if let Some(input) = call.input {
        drop(input_slot.fill(Tensor::from_buffer(input, dtype)));
    }
    Ok(output_slot.fill(Tensor::from_buffer(call.output, dtype)))
}
