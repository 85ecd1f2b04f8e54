//! The resolved parallel configuration of a training run. No I/O.

use regatta_comm::enum_names;
use serde::{Deserialize, Serialize};

use crate::mesh::Mesh;
use crate::pipeline::{PipelineSize, ScheduleKind};

/// How ranks divide the model and the batch of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelLayout {
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
    /// Where state is stored, on the devices of the run.
    pub offload: StateTiers,
}

impl ParallelLayout {
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

/// A memory tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// Device memory.
    #[default]
    Device,
    /// Host memory: pinned if the device has a memory of its own.
    Host,
    /// A file.
    Disk,
}

impl Tier {
    /// The tier in effect: without a memory of its own, the memory of the device is host memory.
    pub fn in_effect(self, has_own_memory: bool) -> Self {
        if self == Self::Host && !has_own_memory { Self::Device } else { self }
    }

    /// Whether state is in device memory only while in use.
    pub fn is_offloaded(self) -> bool {
        self != Self::Device
    }
}

enum_names!(Tier, "All tiers.", Device "device", Host "host", Disk "disk");

/// The memory tiers of the state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateTiers {
    /// Optimizer state.
    pub optimizer: Tier,
    /// Parameters.
    pub params: Tier,
}

impl StateTiers {
    /// Whether any state is offloaded.
    pub fn any_offloaded(&self) -> bool {
        self.optimizer.is_offloaded() || self.params.is_offloaded()
    }
}
