//! Offloading: training state in a memory tier other than the device's, with read-ahead and
//! write-behind.

mod blocks;
mod error;
mod swap_file;

use std::path::PathBuf;

pub use blocks::OffloadedBlocks;
pub use error::{OffloadError, Result};
pub use swap_file::{PendingIo, SwapFile};

/// A memory tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tier {
    /// Device memory.
    #[default]
    Device,
    /// Host memory, which is the device's on CPUs.
    Host,
    /// A file.
    Disk,
}

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
