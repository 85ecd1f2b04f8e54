//! Blocks of elements in a memory tier: resident in memory, or on disk and in memory while in use.

use std::collections::VecDeque;
use std::path::Path;

use regatta_predict::rank_bytes::IoBytes;

use super::{PendingIo, Result, SwapFile, Tier};
use crate::buffer_pool::BufferPool;
use regatta_comm::DType;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};

/// Write-behind depth: blocks still being written while the next one is in use.
const WRITES_IN_FLIGHT: usize = 1;

/// A rank's blocks in one memory tier.
pub struct OffloadedBlocks {
    /// `None` for blocks of other ranks.
    blocks: Vec<Option<OffloadedBlock>>,
    /// Bytes that are always in memory.
    resident_bytes: usize,
    disk: Option<DiskTier>,
}

struct OffloadedBlock {
    elements: usize,
    /// Offset in the swap file.
    offset: u64,
    state: BlockState,
}

enum BlockState {
    OnDisk,
    InFlight(PendingIo),
    Resident(Tensor),
    /// The caller has the tensor.
    Taken,
}

struct DiskTier {
    file: SwapFile,
    dtype: DType,
    pool: BufferPool,
    writes: VecDeque<PendingIo>,
}

impl OffloadedBlocks {
    /// Zeroed blocks of these lengths, `None` for blocks of other ranks. `pool` allocates resident blocks
    /// and buffers for blocks on disk, which are in the file `swap_path`.
    pub fn new(
        tier: Tier,
        swap_path: &Path,
        lens: &[Option<usize>],
        dtype: DType,
        pool: BufferPool,
    ) -> Result<Self> {
        let mut bytes = 0;
        let mut block = |elements: usize| {
            let offset = bytes;
            bytes += (elements * dtype.size()) as u64;
            let state = match tier {
                Tier::Disk => BlockState::OnDisk,
                Tier::Device | Tier::Host => BlockState::Resident(pool.alloc(elements, dtype)),
            };
            OffloadedBlock { elements, offset, state }
        };
        let blocks = lens.iter().map(|len| len.map(&mut block)).collect();
        if tier != Tier::Disk {
            return Ok(Self { blocks, resident_bytes: bytes as usize, disk: None });
        }
        let file = SwapFile::create(swap_path, bytes)?;
        let disk = Some(DiskTier { file, dtype, pool, writes: VecDeque::new() });
        Ok(Self { blocks, resident_bytes: 0, disk })
    }

    /// Whether this rank has a block.
    pub fn is_local(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(Option::is_some)
    }

    /// Starts to read a block that is needed soon.
    pub fn prefetch(&mut self, block: usize) {
        let Some(Some(OffloadedBlock { elements, offset, state })) = self.blocks.get_mut(block)
        else {
            return;
        };
        if let (BlockState::OnDisk, Some(disk)) = (&state, &self.disk) {
            let buffer = disk.pool.take(*elements, disk.dtype);
            *state = BlockState::InFlight(disk.file.read(*offset, buffer));
        }
    }

    /// Makes a block resident until it is released.
    pub fn load(&mut self, block: usize) -> Result<()> {
        self.prefetch(block);
        let Some(OffloadedBlock { state, .. }) = &mut self.blocks[block] else { return Ok(()) };
        *state = match std::mem::replace(state, BlockState::Taken) {
            BlockState::InFlight(read) => BlockState::Resident(read.wait()?),
            other => other,
        };
        Ok(())
    }

    /// A resident block; empty if this rank does not have it.
    pub fn view(&self, block: usize) -> View<'_> {
        match self.blocks[block].as_ref().map(|block| &block.state) {
            Some(BlockState::Resident(tensor)) => tensor.view(),
            None => View::from_slice::<f32>(&[]),
            _ => unreachable!("block {block} is not loaded"),
        }
    }

    /// Mutable view of a resident block.
    pub fn view_mut(&mut self, block: usize) -> ViewMut<'_> {
        match self.blocks[block].as_mut().map(|block| &mut block.state) {
            Some(BlockState::Resident(tensor)) => tensor.view_mut(),
            None => ViewMut::from_slice::<f32>(&mut []),
            _ => unreachable!("block {block} is not loaded"),
        }
    }

    /// Takes the tensor of a resident block, for a collective that needs to own it.
    pub fn take(&mut self, block: usize) -> Tensor {
        let state = self.blocks[block].as_mut().map(|block| &mut block.state);
        match state.map(|state| std::mem::replace(state, BlockState::Taken)) {
            Some(BlockState::Resident(tensor)) => tensor,
            _ => unreachable!("block {block} is not loaded"),
        }
    }

    /// Returns a taken tensor, unmodified.
    pub fn put_back(&mut self, block: usize, tensor: Tensor) {
        if let Some(OffloadedBlock { state, .. }) = &mut self.blocks[block] {
            *state = BlockState::Resident(tensor);
        }
        self.release(block);
    }

    /// Ends the use of an unmodified block.
    pub fn release(&mut self, block: usize) {
        if let Some((_, tensor)) = self.evict(block)
            && let Some(disk) = &self.disk
        {
            disk.pool.give(tensor);
        }
    }

    /// Ends the use of a modified block: starts to write it to disk.
    pub fn write_back(&mut self, block: usize) -> Result<()> {
        match (self.evict(block), &mut self.disk) {
            (Some((offset, tensor)), Some(disk)) => disk.write(offset, tensor),
            _ => Ok(()),
        }
    }

    /// The offset and the buffer of a resident block that has a place on disk.
    fn evict(&mut self, block: usize) -> Option<(u64, Tensor)> {
        let (Some(OffloadedBlock { state, offset, .. }), Some(_)) =
            (&mut self.blocks[block], &self.disk)
        else {
            return None;
        };
        match std::mem::replace(state, BlockState::OnDisk) {
            BlockState::Resident(tensor) => Some((*offset, tensor)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Copies elements out of a block, without loading all of it.
    pub fn read_elements(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        to: &mut [f32],
    ) -> Result<()> {
        // A failed write must be reported before stale data is read.
        self.flush()?;
        let Some((offset, buffer)) = self.elements_on_disk(block, start, to.len())? else {
            device.copy_to_host(self.view(block).slice(start..start + to.len()), to);
            return Ok(());
        };
        let Some(disk) = &self.disk else { return Ok(()) };
        let read = disk.file.read(offset, buffer).wait()?;
        device.copy_to_host(read.view(), to);
        Ok(())
    }

    /// Overwrites elements of a block, without loading all of it.
    pub fn write_elements(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        from: &[f32],
    ) -> Result<()> {
        let Some((offset, mut buffer)) = self.elements_on_disk(block, start, from.len())? else {
            device.copy_from_host(from, self.view_mut(block).slice(start..start + from.len()));
            return Ok(());
        };
        let Some(disk) = &self.disk else { return Ok(()) };
        device.copy_from_host(from, buffer.view_mut());
        disk.file.write(offset, buffer).wait()?;
        Ok(())
    }

    /// Waits until all modified blocks are on disk.
    pub fn flush(&mut self) -> Result<()> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.wait_for_writes(0))
    }

    /// The file offset of elements of a block, and a buffer for them; `None` if the block is resident.
    /// A prefetched block is dropped, because it would go stale when the file is modified.
    fn elements_on_disk(
        &mut self,
        block: usize,
        start: usize,
        elements: usize,
    ) -> Result<Option<(u64, Tensor)>> {
        if let Some(OffloadedBlock { state: BlockState::InFlight(_), .. }) = self.blocks[block] {
            self.load(block)?;
            self.release(block);
        }
        let (Some(OffloadedBlock { offset, state: BlockState::OnDisk, .. }), Some(disk)) =
            (&self.blocks[block], &self.disk)
        else {
            return Ok(None);
        };
        let offset = offset + (start * disk.dtype.size()) as u64;
        Ok(Some((offset, Tensor::zeros(elements, disk.dtype))))
    }

    /// Bytes that are always in memory.
    pub fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    /// Peak bytes of buffers for blocks on disk.
    pub fn transient_bytes(&self) -> usize {
        self.disk.as_ref().map_or(0, |disk| disk.pool.peak_bytes())
    }

    /// Bytes read and written so far.
    pub fn io_bytes(&self) -> IoBytes {
        self.disk.as_ref().map_or(IoBytes::default(), |disk| disk.file.io_bytes())
    }
}

impl DiskTier {
    /// Starts a write; waits for earlier ones if too many are in flight.
    fn write(&mut self, offset: u64, tensor: Tensor) -> Result<()> {
        self.writes.push_back(self.file.write(offset, tensor));
        self.wait_for_writes(WRITES_IN_FLIGHT)
    }

    /// Waits until at most `left` writes are in flight.
    fn wait_for_writes(&mut self, left: usize) -> Result<()> {
        while self.writes.len() > left {
            if let Some(write) = self.writes.pop_front() {
                self.pool.give(write.wait()?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::TempDir;
    use regatta_device::reference::Reference;

    #[test]
    fn blocks_on_disk_keep_their_contents_in_few_buffers() {
        let dir = TempDir::new();
        let lens = [Some(3), None, Some(3), Some(3), Some(3)];
        let pool = BufferPool::new(Arc::new(Reference));
        let path = dir.0.join("blocks");
        let mut blocks = OffloadedBlocks::new(Tier::Disk, &path, &lens, DType::F64, pool).unwrap();
        for round in 0..3 {
            for block in [0, 2, 3, 4] {
                blocks.prefetch(block + 1);
                blocks.load(block).unwrap();
                let elements = blocks.view_mut(block).as_slice::<f64>();
                assert!(elements.iter().all(|x| *x == (block * round) as f64), "{elements:?}");
                elements.iter_mut().for_each(|x| *x += block as f64);
                blocks.write_back(block).unwrap();
            }
        }
        // The last write completes before the read.
        let mut elements = [0.0; 3];
        blocks.read_elements(&Reference, 4, 0, &mut elements).unwrap();
        assert_eq!(elements, [12.0; 3]);
        assert!(blocks.disk.as_ref().is_some_and(|disk| disk.writes.is_empty()));
        assert!(blocks.view(1).is_empty() && !blocks.is_local(1));
        assert_eq!(blocks.resident_bytes(), 0);
        let transient = blocks.transient_bytes();
        assert!(transient <= (WRITES_IN_FLIGHT + 2) * 24, "{transient}");
        drop(blocks);
        assert_eq!(dir.names(), [""; 0]);
    }
}
