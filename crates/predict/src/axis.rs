//! The axes of a mesh, as communication is counted by them.

/// What ranks say to each other, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Parts of the stream, among ranks that share matrices.
    Tensor,
    /// Keys and values, among ranks that share sequences.
    Context,
    /// Gradients, among ranks with the same parameters.
    Data,
    /// Gradients and parameters, among ranks that share sharded state.
    Shard,
    /// Gradients, among ranks with the same share of it.
    Replica,
    /// Activations, to the next pipeline stage.
    Forward,
    /// Their gradients, to the stage before.
    Backward,
    /// Gradients of a tied table, between the first and the last stage.
    Tied,
    /// A few numbers about a step, among all.
    World,
}

impl Axis {
    /// All there are.
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

    /// Its name.
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
