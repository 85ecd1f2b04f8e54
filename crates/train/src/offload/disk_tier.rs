//! Blocks in a swap file. If the device has a memory of its own, they are staged in pinned memory.

use std::path::Path;
use std::sync::Arc;

use regatta_comm::{DType, Event};
use regatta_device::HostTensor;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;
use regatta_model::rank_bytes::IoBytes;

use super::pinned_pool::PinnedPool;
use super::transfer::Transfer;
use super::{PendingIo, Result, SwapFile, has_own_memory};

/// The blocks of a rank in a swap file.
pub(super) struct DiskTier {
    device: Arc<dyn Device>,
    dtype: DType,
    file: SwapFile,
    /// Offsets of the blocks in the file.
    offsets: Vec<u64>,
    /// `None` if the device's buffers are in host memory.
    staging: Option<PinnedPool>,
}

/// A block that is being read into a device buffer.
pub(super) enum DiskRead {
    Direct(PendingIo),
    Staged {
        read: PendingIo,
        buffer: Tensor,
        /// The device's operations that may use the buffer before.
        after: Option<Event>,
    },
}

/// A block that is being written.
pub(super) struct DiskWrite {
    write: PendingIo,
    /// The copy of the device buffer to the staging buffer.
    copy: Option<Transfer>,
}

impl DiskTier {
    /// Zeroed blocks of these lengths in the file `path`.
    pub fn new(
        device: Arc<dyn Device>,
        path: &Path,
        lens: &[Option<usize>],
        dtype: DType,
    ) -> Result<Self> {
        let mut bytes = 0;
        let mut offset = |len: &Option<usize>| {
            let offset = bytes;
            bytes += (len.unwrap_or(0) * dtype.size()) as u64;
            offset
        };
        let offsets = lens.iter().map(&mut offset).collect();
        let file = SwapFile::create(path, bytes)?;
        let staging = has_own_memory(&*device).then(|| PinnedPool::new(device.clone(), dtype));
        Ok(Self { device, dtype, file, offsets, staging })
    }

    /// Starts to read a block into a device buffer that the device's operations so far may use.
    pub fn read(&mut self, block: usize, buffer: Tensor) -> Result<DiskRead> {
        let offset = self.offsets[block];
        Ok(match &mut self.staging {
            None => DiskRead::Direct(self.file.read(offset, HostTensor::new(buffer))),
            Some(staging) => {
                let after = self.device.record_event();
                let read = self.file.read(offset, staging.take(buffer.len())?);
                DiskRead::Staged { read, buffer, after }
            }
        })
    }

    /// Waits for the disk; the device's later operations use the buffer after the copy.
    pub fn finish_read(&mut self, read: DiskRead) -> Result<Tensor> {
        let (read, mut buffer, after) = match read {
            DiskRead::Direct(read) => return Ok(read.wait()?.into_tensor()?),
            DiskRead::Staged { read, buffer, after } => (read, buffer, after),
        };
        let mut staged = read.wait()?;
        let completed = self.device.load_async(&mut staged, buffer.view_mut(), after.as_ref());
        if let Some(staging) = &mut self.staging {
            staging.give(staged);
        }
        Transfer::new(&self.device, buffer, completed).finish()
    }

    /// Starts to write a device buffer, as the device's operations so far leave it, to a block.
    pub fn write(&mut self, block: usize, buffer: Tensor) -> Result<DiskWrite> {
        let offset = self.offsets[block];
        let Some(staging) = &mut self.staging else {
            let write = self.file.write(offset, HostTensor::new(buffer));
            return Ok(DiskWrite { write, copy: None });
        };
        let mut staged = staging.take(buffer.len())?;
        let after = self.device.record_event();
        let completed = self.device.store_async(buffer.view(), &mut staged, after.as_ref());
        let copy = Some(Transfer::new(&self.device, buffer, completed));
        Ok(DiskWrite { write: self.file.write(offset, staged), copy })
    }

    /// Waits for the disk; the device buffer is free for the device's later operations.
    pub fn finish_write(&mut self, write: DiskWrite) -> Result<Tensor> {
        let DiskWrite { write, copy } = write;
        let buffer = copy.map(Transfer::finish).transpose()?;
        let written = write.wait()?;
        match (buffer, &mut self.staging) {
            (Some(buffer), Some(staging)) => {
                staging.give(written);
                Ok(buffer)
            }
            _ => Ok(written.into_tensor()?),
        }
    }

    /// Reads elements of a block into pageable host memory.
    pub fn read_elements(&self, block: usize, start: usize, elements: usize) -> Result<Tensor> {
        let host = HostTensor::new(Tensor::zeros(elements, self.dtype));
        Ok(self.file.read(self.element_offset(block, start), host).wait()?.into_tensor()?)
    }

    /// Overwrites elements of a block.
    pub fn write_elements(&self, block: usize, start: usize, elements: Tensor) -> Result<()> {
        let offset = self.element_offset(block, start);
        self.file.write(offset, HostTensor::new(elements)).wait().map(drop)
    }

    fn element_offset(&self, block: usize, start: usize) -> u64 {
        self.offsets[block] + (start * self.dtype.size()) as u64
    }

    /// Bytes of pinned staging buffers.
    pub fn pinned_bytes(&self) -> usize {
        self.staging.as_ref().map_or(0, PinnedPool::bytes)
    }

    /// Bytes read and written so far.
    pub fn io_bytes(&self) -> IoBytes {
        self.file.io_bytes()
    }
}
