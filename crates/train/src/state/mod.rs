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
