//! The resolved parallel configuration of a training run. No I/O.

use crate::mesh::Mesh;
use crate::pipeline::{PipelineSize, ScheduleKind};

/// How ranks divide the model and the batch of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelPlan {
    /// The device mesh.
    pub mesh: Mesh,
    /// ZeRO stage: 0 replicates, 1 shards optimizer state, 2 gradients too, 3 parameters too.
    pub zero: usize,
    /// Megatron-style sequence parallelism.
    pub sequence_parallel: bool,
    /// Pipeline schedule.
    pub schedule: ScheduleKind,
    /// Model chunks per pipeline stage.
    pub virtual_stages: usize,
    /// Sequences per step, over all replicas.
    pub batch: usize,
    /// Sequences per step and replica.
    pub batch_per_replica: usize,
    /// Sequences per micro-batch and replica.
    pub micro_batch: usize,
    /// Micro-batches per step (gradient accumulation).
    pub micro_batches: usize,
    /// Tiles per matrix.
    pub tiles: usize,
    /// State kept on disk.
    pub disk_offload: DiskOffload,
}

impl ParallelPlan {
    /// The sizes of its pipeline.
    pub fn pipeline_size(&self) -> PipelineSize {
        PipelineSize {
            kind: self.schedule,
            stages: self.mesh.pp,
            virtual_stages: self.virtual_stages,
            micro_batches: self.micro_batches,
        }
    }
}

/// State kept on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskOffload {
    /// Optimizer state.
    pub optimizer: bool,
    /// Parameters.
    pub params: bool,
}
