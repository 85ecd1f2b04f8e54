//! How ranks share a training: the resolved parallel configuration. No I/O.

use crate::mesh::Mesh;
use crate::pipeline::Kind as Pipeline;

/// How ranks share the model and the sequences of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelPlan {
    /// How ranks are laid out.
    pub mesh: Mesh,
    /// What ranks with the same parameters share: nothing, or the optimizer's state (1), gradients
    /// too (2), parameters too (3).
    pub zero: usize,
    /// Whether tensor-parallel ranks share the tokens, too, where nothing is multiplied.
    pub sequence: bool,
    /// The order in which pipeline stages work.
    pub schedule: Pipeline,
    /// Parts of the model that a stage has.
    pub chunks: usize,
    /// Sequences of a step, of all copies of the model together.
    pub batch: usize,
    /// Sequences of a step for each copy of the model.
    pub share: usize,
    /// Sequences that a copy works on at once.
    pub micro_batch: usize,
    /// How often it does, a step.
    pub accumulation: usize,
    /// Pieces that layers' matrices are computed in.
    pub tiles: usize,
    /// What is kept on disk.
    pub on_disk: OnDisk,
}

/// State that is kept on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// The optimizer's.
    pub moments: bool,
    /// Parameters.
    pub parameters: bool,
}
