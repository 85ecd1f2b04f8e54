//! Host memory that a device copies to and from asynchronously.

use std::sync::Arc;

use regatta_comm::Event;

use crate::DeviceError;
use crate::tensor::{Tensor, View, ViewMut};

/// A tensor in host memory, and the last asynchronous copy that reads or writes it. The host accesses the
/// elements after the copy only.
#[derive(Debug)]
pub struct HostTensor {
    tensor: Tensor,
    copy: Option<HostCopy>,
}

/// An asynchronous copy.
#[derive(Debug)]
struct HostCopy {
    completed: Event,
    /// The device that copies, for errors.
    device: Arc<str>,
}

impl HostTensor {
    /// Wraps a tensor in host memory.
    pub fn new(tensor: Tensor) -> Self {
        Self { tensor, copy: None }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.tensor.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.tensor.is_empty()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.tensor.len() * self.tensor.dtype().size()
    }

    /// The elements, once the copy has completed.
    pub fn view(&mut self) -> Result<View<'_>, DeviceError> {
        self.wait()?;
        Ok(self.tensor.view())
    }

    /// The elements, mutable, once the copy has completed.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>, DeviceError> {
        self.wait()?;
        Ok(self.tensor.view_mut())
    }

    /// The bytes, once the copy has completed.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        self.wait()?;
        Ok(self.tensor.host_bytes_mut())
    }

    /// The tensor, once the copy has completed.
    pub fn into_tensor(mut self) -> Result<Tensor, DeviceError> {
        self.wait()?;
        let empty = Tensor::zeros(0, self.tensor.dtype());
        Ok(std::mem::replace(&mut self.tensor, empty))
    }

    /// The elements for a copy by a device, which orders it after earlier copies.
    pub fn view_for_copy(&mut self) -> ViewMut<'_> {
        self.tensor.view_mut()
    }

    /// The completion of the last copy, if it may be in flight.
    pub fn last_copy(&self) -> Option<&Event> {
        self.copy.as_ref().map(|copy| &copy.completed)
    }

    /// Sets the completion of a copy that a device has started after the last one.
    pub fn set_copy(&mut self, completed: Event, device: Arc<str>) {
        self.copy = Some(HostCopy { completed, device });
    }

    /// Waits for the copy.
    fn wait(&mut self) -> Result<(), DeviceError> {
        let Some(HostCopy { completed, device }) = self.copy.take() else { return Ok(()) };
        completed.wait().map_err(|error| DeviceError {
            device: device.to_string(),
            operation: "copying between host and device memory".to_owned(),
            cause: error.to_string(),
        })
    }
}

impl Drop for HostTensor {
    fn drop(&mut self) {
        // A copy that failed accesses the memory no more.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::{CommError, DType};

    fn tensor() -> HostTensor {
        HostTensor::new(Tensor::zeros(4, DType::F32))
    }

    #[test]
    fn the_host_waits_for_the_copy() {
        let mut host = tensor();
        host.set_copy(Event::ended(Ok(())), "GPU 0".into());
        host.view_mut().unwrap().as_slice::<f32>().fill(3.0);
        assert_eq!((host.len(), host.bytes(), host.is_empty()), (4, 16, false));
        assert_eq!(host.into_tensor().unwrap().view().as_slice::<f32>(), [3.0; 4]);
    }

    #[test]
    fn a_failed_copy_is_an_error_of_the_device() {
        let mut host = tensor();
        let (what, why) = ("querying an event".to_owned(), "lost".to_owned());
        host.set_copy(Event::ended(Err(CommError::System { what, why })), "GPU 0".into());
        let error = host.view().unwrap_err().to_string();
        let expected = "GPU 0: copying between host and device memory failed: querying an event";
        assert!(error.starts_with(expected), "{error}");
    }
}
