//! Asynchronous collectives on tensors.

use regatta_comm::{CallKind, Comm, Counts, DType, OwnedCall, Pending, ReduceOp};

use super::Result;
use regatta_device::tensor::Tensor;

/// Starts an in-place reduce-scatter: this rank's range of `full` receives the sum over all ranks.
pub fn reduce_scatter(comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(comm, CallKind::ReduceScatter, full)
}

/// Starts an in-place all-gather: every rank contributes its own range of `full`.
pub fn all_gather(comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(comm, CallKind::AllGather, full)
}

fn in_place(comm: &dyn Comm, kind: CallKind, full: Tensor) -> Pending {
    let (dtype, per_rank) = (full.dtype(), full.len() / comm.size() as usize);
    comm.start(OwnedCall::new(kind, dtype, Counts::Equal(per_rank), full.into_buffer()))
}

/// Starts an all-gather of every rank's `shard` into `full`.
pub fn all_gather_into(comm: &dyn Comm, shard: Tensor, full: Tensor) -> Pending {
    let (dtype, counts) = (shard.dtype(), Counts::Equal(shard.len()));
    let call = OwnedCall::new(CallKind::AllGather, dtype, counts, full.into_buffer());
    comm.start(OwnedCall { input: Some(shard.into_buffer()), ..call })
}

/// Starts an in-place sum over all ranks.
pub fn all_reduce(comm: &dyn Comm, tensor: Tensor) -> Pending {
    let dtype = tensor.dtype();
    comm.start(OwnedCall::all_reduce(dtype, ReduceOp::Sum, tensor.into_buffer()))
}

/// Waits for a collective and returns its output.
pub fn wait(pending: Pending, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from_buffer(pending.wait()?.output, dtype))
}
