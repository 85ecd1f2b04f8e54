//! Blocks in pinned host memory.

use std::sync::Arc;

use regatta_comm::DType;
use regatta_device::HostTensor;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

use super::Result;
use super::transfer::Transfer;

/// The blocks of a rank in pinned host memory.
pub(super) struct HostTier {
    device: Arc<dyn Device>,
    /// `None` for blocks of other ranks.
    blocks: Vec<Option<HostTensor>>,
}

impl HostTier {
    /// Zeroed blocks of these lengths.
    pub fn new(device: Arc<dyn Device>, lens: &[Option<usize>], dtype: DType) -> Result<Self> {
        let block =
            |len: &Option<usize>| len.map(|len| device.zeros_pinned(len, dtype)).transpose();
        let blocks = lens.iter().map(block).collect::<Result<_, _>>()?;
        Ok(Self { device, blocks })
    }

    /// Starts to copy a block into a device buffer that the device's operations so far may use.
    pub fn load(&mut self, block: usize, mut buffer: Tensor) -> Transfer {
        let after = self.device.record_event();
        let completed = self.blocks[block]
            .as_mut()
            .and_then(|host| self.device.load_async(host, buffer.view_mut(), after.as_ref()));
        Transfer::new(&self.device, buffer, completed)
    }

    /// Starts to copy a device buffer, as the device's operations so far leave it, into a block.
    pub fn store(&mut self, block: usize, buffer: Tensor) -> Transfer {
        let after = self.device.record_event();
        let completed = self.blocks[block]
            .as_mut()
            .and_then(|host| self.device.store_async(buffer.view(), host, after.as_ref()));
        Transfer::new(&self.device, buffer, completed)
    }

    /// A block in host memory.
    pub fn block(&mut self, block: usize) -> Option<&mut HostTensor> {
        self.blocks[block].as_mut()
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().flatten().map(HostTensor::bytes).sum()
    }
}
