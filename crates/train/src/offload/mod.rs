//! Offloading: training state in a memory tier other than the device's, with read-ahead and
//! write-behind.
//!
//! A block is copied to device memory before its use, and back if it was modified. If the device has a memory
//! of its own, copies are asynchronous and from or to pinned memory, and events order them with the
//! device's operations. Disk I/O is done by a background thread.

mod blocks;
mod disk_tier;
mod error;
mod host_tier;
mod pinned_pool;
mod swap_file;
mod transfer;

use std::path::PathBuf;

pub use blocks::OffloadedBlocks;
pub use error::{OffloadError, Result};
pub use regatta_predict::layout::Tier;
pub use swap_file::{PendingIo, SwapFile};

use regatta_comm::MemorySpace;
use regatta_device::ops::Device;

/// The memory tiers of the training state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadTiers {
    /// Tier of the optimizer's moments.
    pub optimizer: Tier,
    /// Tier of the parameters.
    pub parameters: Tier,
    /// Directory of the swap files; each rank has its own, which it removes at the end.
    pub dir: PathBuf,
}

impl OffloadTiers {
    /// The tiers in effect on a device: host memory is device memory if the device has no other.
    pub fn on_device(&self, device: &dyn Device) -> Self {
        let has_own_memory = has_own_memory(device);
        let [optimizer, parameters] =
            [self.optimizer, self.parameters].map(|tier| tier.in_effect(has_own_memory));
        Self { optimizer, parameters, dir: self.dir.clone() }
    }
}

/// Whether device memory is not host memory.
fn has_own_memory(device: &dyn Device) -> bool {
    device.memory_space() != MemorySpace::Host
}
