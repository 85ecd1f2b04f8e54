//! Training state: parameters, gradients and optimizer moments, block by block.
//!
//! [`BlockStore`] holds a rank's part of all three. A pass prefetches, unshards, uses and reshards the
//! parameters of a block, accumulates gradients in full blocks and reduces them; the optimizer updates
//! local shards only.

mod block_store;
mod error;
mod grads;
mod init;
mod partition;
mod shard_access;

pub use block_store::BlockStore;
pub use error::{Result, StepError};
pub use grads::{GradStore, GradSync};
pub use init::ParamInit;
pub use partition::{ShardingConfig, ZeroPartition};
pub use shard_access::OptimizerBlock;

/// Device memory of the training state on this rank, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateMemory {
    /// Parameters.
    pub parameters: MemoryUse,
    /// Gradients.
    pub gradients: MemoryUse,
    /// Optimizer moments.
    pub moments: MemoryUse,
    /// Pinned host memory of offloaded state, if the device has a memory of its own.
    pub pinned: usize,
}

/// Memory of one kind of state, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Always allocated.
    pub resident: usize,
    /// Peak of buffers for blocks that are in memory during their use only.
    pub transient: usize,
}

impl MemoryUse {
    /// Peak of both together.
    pub fn peak(&self) -> usize {
        self.resident + self.transient
    }
}
