//! Pinned staging buffers between disk and device.

use std::collections::HashMap;
use std::sync::Arc;

use regatta_comm::DType;
use regatta_device::HostTensor;
use regatta_device::ops::Device;

use super::Result;

/// Pinned buffers of one dtype, reused by length: page-locking memory is slow.
pub(super) struct PinnedPool {
    device: Arc<dyn Device>,
    dtype: DType,
    free: HashMap<usize, Vec<HostTensor>>,
    bytes: usize,
}

impl PinnedPool {
    pub fn new(device: Arc<dyn Device>, dtype: DType) -> Self {
        Self { device, dtype, free: HashMap::new(), bytes: 0 }
    }

    /// Takes a buffer with arbitrary contents, which a copy may still access.
    pub fn take(&mut self, elements: usize) -> Result<HostTensor> {
        if let Some(free) = self.free.get_mut(&elements).and_then(Vec::pop) {
            return Ok(free);
        }
        let buffer = self.device.zeros_pinned(elements, self.dtype)?;
        self.bytes += buffer.bytes();
        Ok(buffer)
    }

    /// Returns a buffer, which a copy may still access.
    pub fn give(&mut self, buffer: HostTensor) {
        self.free.entry(buffer.len()).or_default().push(buffer);
    }

    /// Bytes of all buffers, in use or free.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
