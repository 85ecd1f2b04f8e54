//! The communicators of a mesh, by which traffic is counted.

/// A communicator, named by what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Residual stream, within the tensor-parallel group.
    Tensor,
    /// Keys and values, within the context-parallel group.
    Context,
    /// Gradients, within the data-parallel group.
    Data,
    /// Gradients and parameters, within the sharding group (ZeRO).
    Shard,
    /// Gradients of equal shards, across sharding groups (HSDP).
    Replica,
    /// Activations, to the next pipeline stage.
    Forward,
    /// Activation gradients, to the previous pipeline stage.
    Backward,
    /// Gradients of tied embeddings, between the first and the last stage.
    Tied,
    /// Gradient norm and step statistics, among all ranks.
    World,
}

impl Axis {
    /// All axes, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Tensor,
        Self::Context,
        Self::Data,
        Self::Shard,
        Self::Replica,
        Self::Forward,
        Self::Backward,
        Self::Tied,
        Self::World,
    ];

    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Data => "data",
            Self::Shard => "shard",
            Self::Replica => "replica",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Tied => "tied",
            Self::World => "world",
        }
    }
}
