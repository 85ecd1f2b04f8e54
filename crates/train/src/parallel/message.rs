//! A message between two ranks that is on its way, with the memory that it needs.

use regatta_comm::{Comm, CommError, Counts, Kind, OwnedCall, Pending};

use crate::model::{Home, Lent};
use regatta_device::memory::{Format, Tensor};

/// A message on its way. The communicator has two ranks, the sender and the receiver.
pub struct Message {
    pending: Pending,
    home: Home,
    format: Format,
}

impl Message {
    /// Begins to send.
    pub fn send(comm: &dyn Comm, message: Lent) -> Self {
        Self::start(comm, Kind::Send, 1, message)
    }

    /// Begins to receive as many numbers as there is room for.
    pub fn receive(comm: &dyn Comm, room: Lent) -> Self {
        Self::start(comm, Kind::Receive, 0, room)
    }

    /// Waits for its end. The memory has what was received, or sent.
    pub fn wait(self) -> Result<Lent, CommError> {
        let output = self.pending.wait()?.output;
        Ok(self.home.lent(Tensor::from_buffer(output, self.format)))
    }

    fn start(comm: &dyn Comm, kind: Kind, other: u32, message: Lent) -> Self {
        let (tensor, home) = message.take();
        let (format, counts) = (tensor.format(), Counts::Equal(tensor.len()));
        let mut call = OwnedCall::new(kind, format.into(), counts, tensor.into_buffer());
        call.root = other;
        Self { pending: comm.start(call), home, format }
    }
}
