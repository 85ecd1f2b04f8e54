//! Asynchronous collectives on tensors.

use regatta_comm::{Comm, CommError, Counts, Kind, OwnedCall, Pending, ReduceOp};

use regatta_device::memory::{Format, Tensor};

/// Starts an in-place reduce-scatter: this rank's range of `full` receives the sum over all ranks.
pub fn reduce_scatter(comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(comm, Kind::ReduceScatter, full)
}

/// Starts an in-place all-gather: every rank contributes its own range of `full`.
pub fn all_gather(comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(comm, Kind::AllGather, full)
}

fn in_place(comm: &dyn Comm, kind: Kind, full: Tensor) -> Pending {
    let (dtype, per_rank) = (full.format().into(), full.len() / comm.size() as usize);
    comm.start(OwnedCall::new(kind, dtype, Counts::Equal(per_rank), full.into_buffer()))
}

/// Starts an all-gather of every rank's `shard` into `full`.
pub fn all_gather_into(comm: &dyn Comm, shard: Tensor, full: Tensor) -> Pending {
    let (dtype, counts) = (shard.format().into(), Counts::Equal(shard.len()));
    let call = OwnedCall::new(Kind::AllGather, dtype, counts, full.into_buffer());
    comm.start(OwnedCall { input: Some(shard.into_buffer()), ..call })
}

/// Starts an in-place sum over all ranks.
pub fn all_reduce(comm: &dyn Comm, tensor: Tensor) -> Pending {
    let dtype = tensor.format().into();
    comm.start(OwnedCall::all_reduce(dtype, ReduceOp::Sum, tensor.into_buffer()))
}

/// Waits for a collective and returns its output.
pub fn wait(pending: Pending, format: Format) -> Result<Tensor, CommError> {
    Ok(Tensor::from_buffer(pending.wait()?.output, format))
}
