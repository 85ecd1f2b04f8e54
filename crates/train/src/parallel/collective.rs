//! Collectives on tensors. On a device they run after the device's operations so far, and the device's
//! later operations run after them; the host waits for neither.

use regatta_comm::{CallKind, Comm, Counts, DType, OwnedCall, Pending, ReduceOp};

use super::Result;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

/// Starts an in-place reduce-scatter: this rank's range of `full` receives the sum over all ranks.
pub fn reduce_scatter(device: &dyn Device, comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(device, comm, CallKind::ReduceScatter, full)
}

/// Starts an in-place all-gather: every rank contributes its own range of `full`.
pub fn all_gather(device: &dyn Device, comm: &dyn Comm, full: Tensor) -> Pending {
    in_place(device, comm, CallKind::AllGather, full)
}

fn in_place(device: &dyn Device, comm: &dyn Comm, kind: CallKind, full: Tensor) -> Pending {
    let (dtype, per_rank) = (full.dtype(), full.len() / comm.size() as usize);
    let call = OwnedCall::new(kind, dtype, Counts::Equal(per_rank), full.into_buffer());
    start(device, comm, call)
}

/// Starts an all-gather of every rank's `shard` into `full`.
pub fn all_gather_into(
    device: &dyn Device,
    comm: &dyn Comm,
    shard: Tensor,
    full: Tensor,
) -> Pending {
    let (dtype, counts) = (shard.dtype(), Counts::Equal(shard.len()));
    let call = OwnedCall::new(CallKind::AllGather, dtype, counts, full.into_buffer());
    start(device, comm, OwnedCall { input: Some(shard.into_buffer()), ..call })
}

/// Starts an in-place sum over all ranks.
pub fn all_reduce(device: &dyn Device, comm: &dyn Comm, tensor: Tensor) -> Pending {
    let dtype = tensor.dtype();
    start(device, comm, OwnedCall::all_reduce(dtype, ReduceOp::Sum, tensor.into_buffer()))
}

/// Starts a call after the device's operations so far.
pub fn start(device: &dyn Device, comm: &dyn Comm, call: OwnedCall) -> Pending {
    let after: Vec<_> = device.record_event().into_iter().collect();
    comm.enqueue(vec![call], &after)
}

/// Completes a call: the device's later operations run after it. Calls on host memory are waited for.
pub fn finish(device: &dyn Device, pending: Pending) -> Result<OwnedCall> {
    let event = pending.event();
    if !event.is_on_device() {
        return pending.wait();
    }
    device.wait_event(&event)?;
    pending.into_call_in_flight()
}

/// Completes a call and returns its output.
pub fn wait(device: &dyn Device, pending: Pending, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from_buffer(finish(device, pending)?.output, dtype))
}

/// Runs a call between the device's operations so far and its later ones.
pub fn run(device: &dyn Device, comm: &dyn Comm, mut call: OwnedCall) -> Result<OwnedCall> {
    if device.record_event().is_some() {
        return finish(device, start(device, comm, call));
    }
    comm.run_owned(std::slice::from_mut(&mut call), 1)?;
    Ok(call)
}
