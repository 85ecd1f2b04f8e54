//! Blocks of elements in a memory tier: resident in device memory, or there only while in use.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use regatta_model::rank_bytes::IoBytes;

use super::disk_tier::{DiskRead, DiskTier, DiskWrite};
use super::host_tier::HostTier;
use super::transfer::Transfer;
use super::{Result, Tier, has_own_memory};
use crate::buffer_pool::BufferPool;
use regatta_comm::DType;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_predict::cost::StateBytes;

/// Write-behind depth: blocks still being stored while the next one is in use.
const STORES_IN_FLIGHT: usize = 1;

/// A rank's blocks in one memory tier.
pub struct OffloadedBlocks {
    device: Arc<dyn Device>,
    dtype: DType,
    /// `None` for blocks of other ranks.
    blocks: Vec<Option<OffloadedBlock>>,
    /// Bytes that are always in device memory.
    resident_bytes: usize,
    /// Device buffers of blocks in use.
    pool: BufferPool,
    storage: Storage,
    /// Blocks that are being stored, in the order in which that was started.
    stores: VecDeque<(usize, PendingStore)>,
}

struct OffloadedBlock {
    elements: usize,
    state: BlockState,
}

enum BlockState {
    /// In its tier only.
    Stored,
    /// Being copied to device memory.
    InFlight(PendingLoad),
    /// In device memory.
    Resident(Tensor),
    /// The caller has the tensor.
    Taken,
}

/// Where blocks are while not in use.
enum Storage {
    /// In device memory.
    Device,
    Host(HostTier),
    Disk(DiskTier),
}

enum PendingLoad {
    Host(Transfer),
    Disk(DiskRead),
}

enum PendingStore {
    Host(Transfer),
    Disk(DiskWrite),
}

impl OffloadedBlocks {
    /// Zeroed blocks of these lengths, `None` for blocks of other ranks. `pool` allocates resident blocks
    /// and device buffers; the file `swap_path` has blocks on disk. [`Tier::Host`] is for devices with a
    /// memory of their own.
    pub fn new(
        device: &Arc<dyn Device>,
        tier: Tier,
        swap_path: &Path,
        lens: &[Option<usize>],
        dtype: DType,
        pool: BufferPool,
    ) -> Result<Self> {
        let storage = match tier {
            Tier::Device => Storage::Device,
            Tier::Host => Storage::Host(HostTier::new(device.clone(), lens, dtype)?),
            Tier::Disk => Storage::Disk(DiskTier::new(device.clone(), swap_path, lens, dtype)?),
        };
        let block = |elements: usize| {
            let state = match tier {
                Tier::Device => BlockState::Resident(pool.alloc(elements, dtype)),
                Tier::Host | Tier::Disk => BlockState::Stored,
            };
            OffloadedBlock { elements, state }
        };
        let blocks = lens.iter().map(|len| len.map(block)).collect();
        let resident_bytes = match tier {
            Tier::Device => lens.iter().flatten().sum::<usize>() * dtype.size(),
            Tier::Host | Tier::Disk => 0,
        };
        let (device, stores) = (device.clone(), VecDeque::new());
        Ok(Self { device, dtype, blocks, resident_bytes, pool, storage, stores })
    }

    /// Whether this rank has a block.
    pub fn is_local(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(Option::is_some)
    }

    /// Starts to load a block that is needed soon.
    pub fn prefetch(&mut self, block: usize) -> Result<()> {
        // The load waits for the store in any case, and can use its buffer then.
        if self.stores.iter().any(|(stored, _)| *stored == block) {
            self.finish_stores(0)?;
        }
        let Some(Some(OffloadedBlock { elements, state: state @ BlockState::Stored })) =
            self.blocks.get_mut(block)
        else {
            return Ok(());
        };
        let buffer = || self.pool.take(*elements, self.dtype);
        let load = match &mut self.storage {
            Storage::Device => return Ok(()),
            Storage::Host(host) => PendingLoad::Host(host.load(block, buffer())),
            Storage::Disk(disk) => PendingLoad::Disk(disk.read(block, buffer())?),
        };
        *state = BlockState::InFlight(load);
        Ok(())
    }

    /// Makes a block resident until it is released. The device's later operations use it after it was
    /// loaded; the host waits for the disk only.
    pub fn load(&mut self, block: usize) -> Result<()> {
        self.prefetch(block)?;
        let Some(OffloadedBlock { state, .. }) = &mut self.blocks[block] else { return Ok(()) };
        let loaded = match (std::mem::replace(state, BlockState::Stored), &mut self.storage) {
            (BlockState::InFlight(PendingLoad::Host(transfer)), _) => transfer.finish(),
            (BlockState::InFlight(PendingLoad::Disk(read)), Storage::Disk(disk)) => {
                disk.finish_read(read)
            }
            (other, _) => {
                *state = other;
                return Ok(());
            }
        };
        *state = BlockState::Resident(loaded?);
        Ok(())
    }

    /// Makes a block resident with arbitrary contents, for a caller that overwrites all of it.
    pub fn load_uninit(&mut self, block: usize) -> Result<()> {
        match &mut self.blocks[block] {
            Some(OffloadedBlock { elements, state: state @ BlockState::Stored }) => {
                *state = BlockState::Resident(self.pool.take(*elements, self.dtype));
                Ok(())
            }
            _ => self.load(block),
        }
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
        if let Some(buffer) = self.evict(block) {
            self.pool.give(buffer);
        }
    }

    /// Ends the use of a modified block: starts to store it in its tier.
    pub fn write_back(&mut self, block: usize) -> Result<()> {
        let Some(buffer) = self.evict(block) else { return Ok(()) };
        let store = match &mut self.storage {
            Storage::Device => return Ok(()),
            Storage::Host(host) => PendingStore::Host(host.store(block, buffer)),
            Storage::Disk(disk) => PendingStore::Disk(disk.write(block, buffer)?),
        };
        self.stores.push_back((block, store));
        self.finish_stores(STORES_IN_FLIGHT)
    }

    /// The device buffer of a resident block that is also in another tier.
    fn evict(&mut self, block: usize) -> Option<Tensor> {
        if let Storage::Device = self.storage {
            return None;
        }
        let OffloadedBlock { state, .. } = self.blocks[block].as_mut()?;
        match std::mem::replace(state, BlockState::Stored) {
            BlockState::Resident(buffer) => Some(buffer),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Finishes all but the last `left` stores: their device buffers are free for the device's later
    /// operations.
    fn finish_stores(&mut self, left: usize) -> Result<()> {
        while self.stores.len() > left
            && let Some((_, store)) = self.stores.pop_front()
        {
            let buffer = match (store, &mut self.storage) {
                (PendingStore::Host(transfer), _) => transfer.finish()?,
                (PendingStore::Disk(write), Storage::Disk(disk)) => disk.finish_write(write)?,
                _ => unreachable!("a write to disk without a disk tier"),
            };
            self.pool.give(buffer);
        }
        Ok(())
    }

    /// Copies elements out of a block, without loading all of it.
    pub fn read_elements(&mut self, block: usize, start: usize, to: &mut [f32]) -> Result<()> {
        // A failed write must be reported before stale data is read.
        self.flush()?;
        self.drop_prefetched(block)?;
        let (device, range) = (&*self.device, start..start + to.len());
        match (self.is_stored(block), &mut self.storage) {
            (true, Storage::Host(host)) => {
                if let Some(host) = host.block(block) {
                    copy_to_f32(device, host.view()?.slice(range), to);
                }
            }
            (true, Storage::Disk(disk)) => {
                let elements = disk.read_elements(block, start, to.len())?;
                copy_to_f32(device, elements.view(), to);
            }
            _ => device.copy_to_host(self.view(block).slice(range), to),
        }
        Ok(())
    }

    /// Overwrites elements of a block, without loading all of it.
    pub fn write_elements(&mut self, block: usize, start: usize, from: &[f32]) -> Result<()> {
        self.drop_prefetched(block)?;
        let (device, range) = (self.device.clone(), start..start + from.len());
        match (self.is_stored(block), &mut self.storage) {
            (true, Storage::Host(host)) => {
                if let Some(host) = host.block(block) {
                    copy_from_f32(&*device, from, host.view_mut()?.slice(range));
                }
            }
            (true, Storage::Disk(disk)) => {
                let mut elements = Tensor::zeros(from.len(), self.dtype);
                copy_from_f32(&*device, from, elements.view_mut());
                disk.write_elements(block, start, elements)?;
            }
            _ => device.copy_from_host(from, self.view_mut(block).slice(range)),
        }
        Ok(())
    }

    /// Finishes all stores; those to disk are complete then.
    pub fn flush(&mut self) -> Result<()> {
        self.finish_stores(0)
    }

    fn is_stored(&self, block: usize) -> bool {
        matches!(self.blocks[block], Some(OffloadedBlock { state: BlockState::Stored, .. }))
    }

    /// Drops a prefetched block, because it would go stale when the stored one is modified.
    fn drop_prefetched(&mut self, block: usize) -> Result<()> {
        if let Some(OffloadedBlock { state: BlockState::InFlight(_), .. }) = self.blocks[block] {
            self.load(block)?;
            self.release(block);
        }
        Ok(())
    }

    /// Whether blocks are always in device memory.
    pub fn is_resident(&self) -> bool {
        matches!(self.storage, Storage::Device)
    }

    /// The addresses of blocks in device memory.
    pub fn addresses(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().flatten().filter_map(|block| match &block.state {
            BlockState::Resident(tensor) => Some(tensor.view().address().addr().get()),
            _ => None,
        })
    }

    /// Device memory: of resident blocks, and the peak of buffers for blocks in use.
    pub fn memory(&self) -> StateBytes {
        let (resident, transient) = (self.resident_bytes as u64, self.pool.peak_bytes() as u64);
        StateBytes { resident, transient }
    }

    /// Bytes of pinned host memory.
    pub fn pinned_bytes(&self) -> usize {
        match &self.storage {
            Storage::Device => 0,
            Storage::Host(host) => host.bytes(),
            Storage::Disk(disk) => disk.pinned_bytes(),
        }
    }

    /// Bytes read from and written to disk so far.
    pub fn io_bytes(&self) -> IoBytes {
        match &self.storage {
            Storage::Disk(disk) => disk.io_bytes(),
            Storage::Device | Storage::Host(_) => IoBytes::default(),
        }
    }
}

/// Copies stored elements. Devices with a memory of their own have f32 master elements.
fn copy_to_f32(device: &dyn Device, from: View<'_>, to: &mut [f32]) {
    match has_own_memory(device) {
        true => to.copy_from_slice(from.as_slice()),
        false => device.copy_to_host(from, to),
    }
}

/// Copies to stored elements, as [`copy_to_f32`].
fn copy_from_f32(device: &dyn Device, from: &[f32], to: ViewMut<'_>) {
    match has_own_memory(device) {
        true => to.as_slice().copy_from_slice(from),
        false => device.copy_from_host(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use regatta_device::reference::Reference;

    #[test]
    fn blocks_on_disk_keep_their_contents_in_few_buffers() {
        let dir = TempDir::new();
        let lens = [Some(3), None, Some(3), Some(3), Some(3)];
        let device: Arc<dyn Device> = Arc::new(Reference);
        let (pool, path) = (BufferPool::new(device.clone()), dir.0.join("blocks"));
        let mut blocks =
            OffloadedBlocks::new(&device, Tier::Disk, &path, &lens, DType::F64, pool).unwrap();
        for round in 0..3 {
            for block in [0, 2, 3, 4] {
                blocks.prefetch(block + 1).unwrap();
                blocks.load(block).unwrap();
                let elements = blocks.view_mut(block).as_slice::<f64>();
                assert!(elements.iter().all(|x| *x == (block * round) as f64), "{elements:?}");
                elements.iter_mut().for_each(|x| *x += block as f64);
                blocks.write_back(block).unwrap();
            }
        }
        // The last write completes before the read.
        let mut elements = [0.0; 3];
        blocks.read_elements(4, 0, &mut elements).unwrap();
        assert_eq!(elements, [12.0; 3]);
        assert!(blocks.stores.is_empty());
        assert!(blocks.view(1).is_empty() && !blocks.is_local(1));
        assert_eq!((blocks.memory().resident, blocks.pinned_bytes()), (0, 0));
        let transient = blocks.memory().transient;
        assert!(transient as usize <= (STORES_IN_FLIGHT + 2) * 24, "{transient}");
        drop(blocks);
        assert_eq!(dir.names(), [""; 0]);
    }
}
