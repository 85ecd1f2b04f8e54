//! A device buffer that is being copied.

use std::sync::Arc;

use regatta_comm::Event;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

use super::Result;

/// A device buffer and the completion of an asynchronous copy from or to it.
pub(super) struct Transfer {
    device: Arc<dyn Device>,
    /// `None` only during `finish`.
    buffer: Option<Tensor>,
    completed: Option<Event>,
}

impl Transfer {
    /// A copy that was started.
    pub fn new(device: &Arc<dyn Device>, buffer: Tensor, completed: Option<Event>) -> Self {
        Self { device: device.clone(), buffer: Some(buffer), completed }
    }

    /// The buffer, which the device's later operations use after the copy. The host does not wait.
    pub fn finish(mut self) -> Result<Tensor> {
        self.wait_on_device()?;
        match self.buffer.take() {
            Some(buffer) => Ok(buffer),
            None => unreachable!("only `finish` takes the buffer"),
        }
    }

    fn wait_on_device(&mut self) -> Result<()> {
        match self.completed.take() {
            Some(event) => Ok(self.device.wait_event(&event)?),
            None => Ok(()),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // The buffer is freed in the order of the device's operations: after the copy.
        let _ = self.wait_on_device();
    }
}
