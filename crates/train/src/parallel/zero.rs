//! ZeRO: data-parallel ranks partition the training state. Each rank owns an equal range of every
//! block, receives the reduced gradients of that range, and updates it.
//!
//! With hybrid sharding (HSDP) the state is partitioned inside a shard group and replicated across
//! groups; reduced gradient shards are then all-reduced over the replicas.

/// ZeRO stage: which state is partitioned. Each stage includes the previous ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing is partitioned: plain data parallelism (DDP).
    #[default]
    Off,
    /// Optimizer state.
    One,
    /// Optimizer state and gradients.
    Two,
    /// Optimizer state, gradients and parameters (FSDP).
    Three,
}

impl ZeroStage {
    /// Stage 0 to 3.
    pub fn from_number(number: usize) -> Option<Self> {
        [Self::Off, Self::One, Self::Two, Self::Three].get(number).copied()
    }
}
