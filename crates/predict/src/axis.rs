//! The communicators of a mesh, by which traffic is counted.

use regatta_comm::enum_names;

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

enum_names!(Axis, "All axes, in the order of their declaration.",
    Tensor "tensor", Context "context", Data "data", Shard "shard", Replica "replica",
    Forward "forward", Backward "backward", Tied "tied", World "world");
