//! Explains a parallel configuration before anything is trained: mesh coordinates, memory, traffic and
//! pipeline schedule of each rank. No I/O.

use std::collections::HashMap;

use serde::Serialize;

use crate::axis::Axis;
use crate::cost::{CostError, CostOptions, RankCost, RankCosts, rank_costs};
use crate::layout::ParallelLayout;
use crate::memory_check::MemoryNeed;
use crate::mesh::{Mesh, MeshCoord};
use crate::pipeline::{
    ChunkCosts, Schedule, SimulateError, StageError, Timeline, balance, block_costs, simulate,
};
use crate::shape::ModelShape;
use regatta_model::rank_bytes::{DiskIoBytes, PINNED, PeakBytes, SentBytes};

/// The largest number of ranks that is explained.
pub const MAX_RANKS: usize = 1 << 16;

/// An explained configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// Name of the model.
    pub model: String,
    /// Number of parameters.
    pub parameters: usize,
    /// Whether the vocabulary size is known; if the data determines it, 65 is assumed.
    pub vocab_known: bool,
    /// Ranks per axis.
    pub mesh: MeshSummary,
    /// Batch sizes of a step.
    pub step: StepSummary,
    /// Notes and warnings.
    pub notes: Vec<String>,
    /// Memory and traffic, once for all equal ranks.
    pub rank_classes: Vec<RankClass>,
    /// Each rank.
    pub ranks: Vec<ExplainedRank>,
    /// Simulated pipeline schedule, if there are several stages.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
    /// Bubble ratio of the pipeline: idle time over compute time of the busiest stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// Idle fraction of the step, mean over the stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
}

/// Ranks per axis and sharding options.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MeshSummary {
    /// Data-parallel replicas.
    pub dp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Context-parallel ranks.
    pub cp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// ZeRO stage.
    pub zero: usize,
    /// Size of the sharding group.
    pub shard: usize,
    /// Sequence parallelism.
    pub sequence_parallel: bool,
    /// Tiles per matrix.
    pub tiles: usize,
}

/// Batch sizes of a step, in sequences.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StepSummary {
    /// Over all replicas.
    pub batch: usize,
    /// Per replica.
    pub batch_per_replica: usize,
    /// Per micro-batch.
    pub micro_batch: usize,
    /// Whether that was chosen for the GPUs.
    pub micro_batch_auto: bool,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
}

/// Memory and traffic of equal ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankClass {
    /// The blocks that it has, or has shards of.
    pub blocks: Vec<String>,
    /// Expected peak memory of the device.
    pub memory: Vec<PeakBytes>,
    /// Expected peak of host memory, if the device has a memory of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_memory: Vec<PeakBytes>,
    /// Expected bytes sent per step, without zero rows.
    pub sent: Vec<SentBytes>,
    /// Expected disk traffic per step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disk_io: Vec<DiskIoBytes>,
}

impl RankClass {
    fn new(cost: RankCost, checkpoint_copy: u64, has_own_memory: bool) -> Self {
        let RankCost { blocks, memory, traffic, disk_io } = cost;
        let pinned = memory.pinned;
        let peak = |what: &str, expected| PeakBytes { what: what.into(), expected, measured: None };
        let mut memory = vec![
            peak("parameters", memory.params.peak()),
            peak("gradients", memory.grads.peak()),
            peak("optimizer", memory.optimizer.peak()),
            peak("activations", memory.activations),
            peak("workspace", memory.workspace),
        ];
        let mut host_memory = Vec::from_iter((pinned > 0).then(|| peak(PINNED, pinned)));
        let copied_to = if has_own_memory { &mut host_memory } else { &mut memory };
        copied_to.extend((checkpoint_copy > 0).then(|| peak("checkpoint copy", checkpoint_copy)));
        let sent = |axis: Axis| {
            let (expected, axis) = (traffic.on(axis), axis.name().to_owned());
            (expected > 0).then_some(SentBytes { axis, expected, measured: None })
        };
        let sent = Axis::ALL.into_iter().filter_map(sent).collect();
        Self { blocks, memory, host_memory, sent, disk_io: DiskIoBytes::rows(disk_io, None) }
    }
}

/// Coordinates and class of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedRank {
    /// Rank.
    pub rank: usize,
    /// Host, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Data-parallel index.
    pub dp: usize,
    /// Tensor-parallel index.
    pub tp: usize,
    /// Context-parallel index.
    pub cp: usize,
    /// Pipeline stage.
    pub pp: usize,
    /// Index into [`Explanation::rank_classes`].
    pub class: usize,
}

/// The configuration to explain.
#[derive(Debug, Clone)]
pub struct ExplainInput<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Shape of the model.
    pub shape: &'a ModelShape,
    /// Whether the vocabulary size is known.
    pub vocab_known: bool,
    /// Parallel configuration.
    pub plan: &'a ParallelLayout,
    /// Whether its micro-batch size was chosen for the GPUs.
    pub micro_batch_auto: bool,
    /// Element sizes.
    pub options: CostOptions,
    /// Whether checkpoints are copied, and written while training continues.
    pub saves_in_background: bool,
    /// Ranks per host, if known.
    pub ranks_per_host: Option<usize>,
    /// Notes on the configuration.
    pub notes: Vec<String>,
}

/// A configuration that cannot be explained.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExplainError {
    /// The cost model refuses it.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The model cannot be split into these stages.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The schedule cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// Explains a configuration.
pub fn explain(input: ExplainInput<'_>) -> Result<Explanation, ExplainError> {
    let ExplainInput { model, shape, vocab_known, plan, options, mut notes, .. } = input;
    let checkpoint_copy = |cost: &RankCost| match input.saves_in_background {
        true => MemoryNeed::checkpoint_copy(plan, &cost.memory),
        false => 0,
    };
    let new_class = |cost: RankCost| {
        let copy = checkpoint_copy(&cost);
        RankClass::new(cost, copy, options.has_own_memory)
    };
    let (rank_classes, class_of) = rank_classes(rank_costs(shape, plan, options)?, new_class);
    let per_host = input.ranks_per_host.filter(|ranks| *ranks > 0);
    let host = |rank: usize| Some(format!("node {}", rank / per_host?));
    let hosts: Option<Vec<String>> = (0..class_of.len()).map(host).collect();
    let explained = |(rank, class): (usize, usize)| {
        let MeshCoord { dp, cp, tp, pp } = plan.mesh.coord(rank);
        ExplainedRank { rank, host: host(rank), dp, tp, cp, pp, class }
    };
    let timeline = timeline(shape, plan)?;
    notes.extend(hosts.as_deref().and_then(|hosts| plan.mesh.cross_host_warning(hosts)));
    let ParallelLayout { zero, sequence_parallel, tiles, batch, batch_per_replica, .. } = *plan;
    let ParallelLayout { mesh: Mesh { dp, cp, tp, pp, shard }, micro_batch, micro_batches, .. } =
        *plan;
    let seq_len = shape.seq_len;
    Ok(Explanation {
        model: model.to_owned(),
        parameters: shape.num_params(),
        vocab_known,
        mesh: MeshSummary { dp, tp, cp, pp, zero, shard, sequence_parallel, tiles },
        step: StepSummary {
            batch,
            batch_per_replica,
            micro_batch,
            micro_batch_auto: input.micro_batch_auto,
            micro_batches,
            seq_len,
        },
        notes,
        rank_classes,
        ranks: class_of.into_iter().enumerate().map(explained).collect(),
        bubble: timeline.as_ref().map(Timeline::bubble),
        idle: timeline.as_ref().map(Timeline::idle_overall),
        timeline,
    })
}

/// Merges classes of equal cost, and maps each rank to its class.
fn rank_classes(
    costs: RankCosts,
    new_class: impl Fn(RankCost) -> RankClass,
) -> (Vec<RankClass>, Vec<usize>) {
    let (mut classes, mut known) = (Vec::new(), HashMap::new());
    let mut index = |cost: RankCost| {
        *known.entry(cost.clone()).or_insert_with(|| {
            classes.push(new_class(cost));
            classes.len() - 1
        })
    };
    let merged: Vec<usize> = costs.classes.into_iter().map(&mut index).collect();
    (classes, costs.class_of.into_iter().map(|class| merged[class]).collect())
}

/// Simulates the pipeline with chunk durations proportional to their FLOPs.
fn timeline(shape: &ModelShape, plan: &ParallelLayout) -> Result<Option<Timeline>, ExplainError> {
    if plan.mesh.pp == 1 {
        return Ok(None);
    }
    let ParallelLayout { schedule, virtual_stages, micro_batches, .. } = *plan;
    let schedule = Schedule::new(schedule, plan.mesh.pp, virtual_stages, micro_batches)
        .map_err(StageError::from)?;
    let blocks = block_costs(shape, shape.seq_len);
    let chunks = balance(&blocks, schedule.num_chunks()).map_err(StageError::from)?;
    let costs: Vec<f64> = chunks.into_iter().map(|chunk| blocks[chunk].iter().sum()).collect();
    Ok(Some(simulate(&schedule, &ChunkCosts::equal_thirds(&costs))?))
}
