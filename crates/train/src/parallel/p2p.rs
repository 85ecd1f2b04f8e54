//! A point-to-point transfer in flight, with the buffer it owns.

use regatta_comm::{CallKind, Comm, Counts, DType, OwnedCall, Pending};

use super::{Result, collective};
use crate::buffer_pool::{PoolSlot, PooledTensor};
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

/// A send or receive in flight over a two-rank communicator: rank 0 sends, rank 1 receives.
pub struct P2pTransfer {
    pending: Pending,
    slot: PoolSlot,
    dtype: DType,
}

impl P2pTransfer {
    /// Starts a send.
    pub fn send(device: &dyn Device, comm: &dyn Comm, message: PooledTensor) -> Self {
        Self::start(device, comm, CallKind::Send, 1, message)
    }

    /// Starts a receive that fills `buffer`.
    pub fn recv(device: &dyn Device, comm: &dyn Comm, buffer: PooledTensor) -> Self {
        Self::start(device, comm, CallKind::Receive, 0, buffer)
    }

    /// Completes the transfer and returns the buffer, which holds the message.
    pub fn wait(self, device: &dyn Device) -> Result<PooledTensor> {
        let output = collective::finish(device, self.pending)?.output;
        Ok(self.slot.fill(Tensor::from_buffer(output, self.dtype)))
    }

    fn start(
        device: &dyn Device,
        comm: &dyn Comm,
        kind: CallKind,
        peer: u32,
        message: PooledTensor,
    ) -> Self {
        let (tensor, slot) = message.take();
        let (dtype, counts) = (tensor.dtype(), Counts::Equal(tensor.len()));
        let mut call = OwnedCall::new(kind, dtype, counts, tensor.into_buffer());
        call.root = peer;
        Self { pending: collective::start(device, comm, call), slot, dtype }
    }
}
