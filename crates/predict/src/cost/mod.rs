//! Cost model: peak memory of each rank, and the bytes it sends and reads from and writes to disk per
//! step. Exact counts derived from the model's blocks and from what the engine does. No I/O.
//!
//! With P parameters, n data ranks, t tensor ranks and s·b tokens of a micro-batch of hidden size h, the
//! counts reduce to the usual formulas: 16·P/t bytes of state per rank (all f32), (8+8/n)·P/t with
//! ZeRO 1, (4+12/n)·P/t with ZeRO 2, 16·P/(n·t) plus the unsharded blocks with ZeRO 3; data parallelism
//! sends 2(n-1)/n of the gradients, ZeRO 3 (n-1)/n of the parameters twice and of the gradients once per
//! micro-batch; tensor parallelism 8(t-1)/t·s·b·h elements per layer; a pipeline s·b·h elements per
//! boundary and direction. Padding, norms and position embeddings are counted, too.

mod block_classes;
mod disk_io;
mod memory;
mod traffic;

use std::collections::HashMap;

use block_classes::{BlockClass, BlockClasses};

use crate::axis::Axis;
use crate::layout::ParallelLayout;
use crate::mesh::MeshCoord;
use crate::pipeline::{Stage, StageError};
use crate::shape::ModelShape;
use regatta_model::rank_bytes::IoBytes;

/// Element sizes and recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostOptions {
    /// Bytes per element of master parameters, gradients and optimizer state.
    pub master_bytes: u64,
    /// Bytes per element of the residual stream.
    pub residual_bytes: u64,
    /// Bytes per element of the gradient of the residual stream.
    pub residual_grad_bytes: u64,
    /// Bytes per element of the parameters that passes read.
    pub weight_bytes: u64,
    /// Bytes per element of other activations.
    pub activation_bytes: u64,
    /// Bytes per element of logits.
    pub logit_bytes: u64,
    /// Elements of logits in memory at once; `None` for the default.
    pub max_logits: Option<usize>,
    /// Whether rows of logits are padded.
    pub pads_logits: bool,
    /// Whether layers recompute their activations in the backward pass.
    pub recompute: bool,
    /// Whether layers have GEMMs on fp8 operands.
    pub fp8_layers: bool,
    /// Whether the head has.
    pub fp8_head: bool,
    /// Whether device memory is not host memory.
    pub has_own_memory: bool,
}

impl CostOptions {
    /// On CPUs: f32 parameters and residual stream; logits in the dtype of activations, with padded rows if
    /// that is bf16, as on CPUs with AMX.
    pub fn new(activation_bytes: u64, recompute: bool) -> Self {
        Self {
            logit_bytes: activation_bytes,
            pads_logits: activation_bytes < 4,
            ..Self::uniform(4, activation_bytes, recompute)
        }
    }

    /// Everything but activations has elements of the same size.
    pub fn uniform(master_bytes: u64, activation_bytes: u64, recompute: bool) -> Self {
        Self {
            master_bytes,
            residual_bytes: master_bytes,
            residual_grad_bytes: master_bytes,
            weight_bytes: master_bytes,
            activation_bytes,
            logit_bytes: master_bytes,
            max_logits: None,
            pads_logits: false,
            recompute,
            fp8_layers: false,
            fp8_head: false,
            has_own_memory: false,
        }
    }

    /// On GPUs: f32 master parameters and residual stream; parameters, activations, their gradients and
    /// logits in the dtype of the GEMMs.
    pub fn gpu(gemm_bytes: u64, max_logits: Option<usize>, recompute: bool) -> Self {
        Self {
            residual_grad_bytes: gemm_bytes,
            weight_bytes: gemm_bytes,
            logit_bytes: gemm_bytes,
            max_logits,
            pads_logits: true,
            has_own_memory: true,
            ..Self::new(gemm_bytes, recompute)
        }
    }

    /// Whether parameters exist as master parameters and as a copy that passes read.
    fn has_weight_copy(&self) -> bool {
        self.weight_bytes != self.master_bytes
    }

    /// Bytes per element of the gradient of the residual stream as an operand of GEMMs: those of GPUs have
    /// operands of one dtype.
    fn residual_grad_operand_bytes(&self) -> u64 {
        if self.has_own_memory { self.weight_bytes } else { self.residual_grad_bytes }
    }
}

/// Bytes of one kind of state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StateBytes {
    /// Always in memory.
    pub resident: u64,
    /// For blocks that are in memory only while they are used.
    pub transient: u64,
}

impl StateBytes {
    /// Peak.
    pub fn peak(&self) -> u64 {
        self.resident + self.transient
    }
}

/// Peak device memory of a rank in bytes, and its host memory if that is another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemoryBytes {
    /// Parameters.
    pub params: StateBytes,
    /// Gradients.
    pub grads: StateBytes,
    /// Optimizer state: two moments per parameter.
    pub optimizer: StateBytes,
    /// Saved activations of all micro-batches in flight.
    pub activations: u64,
    /// Temporary buffers: activation gradients of a layer, a chunk of logits, pipeline messages, and
    /// copies of tied embedding gradients.
    pub workspace: u64,
    /// Pinned host memory of offloaded state.
    pub pinned: u64,
}

impl MemoryBytes {
    /// Parameters, gradients and optimizer state.
    pub fn state(&self) -> u64 {
        self.params.peak() + self.grads.peak() + self.optimizer.peak()
    }

    /// All device memory.
    pub fn total(&self) -> u64 {
        self.state() + self.activations + self.workspace
    }
}

/// Bytes a rank sends per step, counted as by [`regatta_comm::traffic::elements_sent`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TrafficBytes {
    by_axis: [u64; Axis::ALL.len()],
}

impl TrafficBytes {
    /// On one axis.
    pub fn on(&self, axis: Axis) -> u64 {
        self.by_axis[axis as usize]
    }

    /// On all axes.
    pub fn total(&self) -> u64 {
        self.by_axis.iter().sum()
    }
}

/// The cost of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RankCost {
    /// Names of the blocks that it has, or has shards of.
    pub blocks: Vec<String>,
    /// Peak memory.
    pub memory: MemoryBytes,
    /// Bytes sent per step.
    pub traffic: TrafficBytes,
    /// Bytes read from and written to disk per step.
    pub disk_io: IoBytes,
}

/// A configuration without a cost.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CostError {
    /// The model cannot be split into these stages.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Byte counts would overflow 64 bits.
    #[error(
        "a step over {tokens:.1e} tokens with {parameters:.1e} parameters overflows the cost model: \
         reduce train.batch, model.seq_len or the model"
    )]
    TooLarge { tokens: f64, parameters: f64 },
}

/// The costs of all ranks, equal ranks counted once.
#[derive(Debug, Clone)]
pub struct RankCosts {
    /// The cost of each class of ranks. Several classes may have equal costs.
    pub classes: Vec<RankCost>,
    /// The class of each rank.
    pub class_of: Vec<usize>,
}

/// The costs of all ranks. Replicas, of which there may be thousands, are computed once.
pub fn rank_costs(
    shape: &ModelShape,
    plan: &ParallelLayout,
    options: CostOptions,
) -> Result<RankCosts, CostError> {
    check_size(shape, plan)?;
    let mesh = &plan.mesh;
    let mut stage = stage(shape, plan, 0)?;
    let mut costs = RankCosts { classes: Vec::new(), class_of: vec![0; mesh.ranks()] };
    for tp in 0..mesh.tp {
        let first = MeshCoord { dp: 0, cp: 0, tp, pp: 0 };
        let blocks = BlockClasses::new(shape, first.tensor_shard(mesh), plan.tiles);
        for pp in 0..mesh.pp {
            stage.index = pp;
            let coord = MeshCoord { pp, ..first };
            let (stage, blocks, local) = (&stage, &blocks, Vec::new());
            let rank = RankModel { shape, plan, options, coord, stage, blocks, local };
            costs.add(rank.with_local_blocks());
        }
    }
    Ok(costs)
}

impl RankCosts {
    /// The cost of a rank.
    pub fn rank(&self, rank: usize) -> &RankCost {
        &self.classes[self.class_of[rank]]
    }

    /// Adds all ranks with the same stage and tensor shard.
    fn add(&mut self, mut rank: RankModel<'_>) {
        let mesh = rank.plan.mesh;
        let mut known = HashMap::new();
        for data in 0..mesh.data_ranks() {
            rank.coord = MeshCoord { dp: data / mesh.cp, cp: data % mesh.cp, ..rank.coord };
            let classes = &mut self.classes;
            let class = *known.entry(rank.traffic_class()).or_insert_with(|| {
                classes.push(rank.cost());
                classes.len() - 1
            });
            self.class_of[mesh.rank(rank.coord)] = class;
        }
    }
}

/// The cost of one rank.
pub fn rank_cost(
    shape: &ModelShape,
    plan: &ParallelLayout,
    options: CostOptions,
    rank: usize,
) -> Result<RankCost, CostError> {
    check_size(shape, plan)?;
    let coord = plan.mesh.coord(rank);
    let stage = stage(shape, plan, coord.pp)?;
    let blocks = BlockClasses::new(shape, coord.tensor_shard(&plan.mesh), plan.tiles);
    let (stage, blocks, local) = (&stage, &blocks, Vec::new());
    let rank = RankModel { shape, plan, options, coord, stage, blocks, local };
    Ok(rank.with_local_blocks().cost())
}

fn stage(shape: &ModelShape, plan: &ParallelLayout, index: usize) -> Result<Stage, StageError> {
    match plan.mesh.pp {
        1 => Ok(Stage::single(shape)),
        _ => Stage::new(shape, plan.pipeline_size(), index),
    }
}

/// Rejects sizes, mostly typing errors, whose byte counts would overflow.
fn check_size(shape: &ModelShape, plan: &ParallelLayout) -> Result<(), CostError> {
    // An upper bound of the factors below: bytes, directions, passes and moments.
    const FACTOR: f64 = 128.0;
    let parameters = shape.num_params() as f64;
    let tokens = plan.batch_per_replica as f64 * shape.seq_len as f64;
    let dims = [4 * shape.hidden_size, shape.qkv_dim(), 2 * shape.up_dim(), shape.vocab_size];
    let per_token = dims.iter().sum::<usize>() as f64 * (shape.num_layers + 2) as f64;
    let elements = tokens * per_token + parameters * plan.micro_batches as f64;
    match elements * FACTOR < u64::MAX as f64 {
        true => Ok(()),
        false => Err(CostError::TooLarge { tokens, parameters }),
    }
}

/// The cost model of one rank.
struct RankModel<'a> {
    shape: &'a ModelShape,
    plan: &'a ParallelLayout,
    options: CostOptions,
    coord: MeshCoord,
    stage: &'a Stage,
    /// The blocks of all stages of this tensor-parallel rank.
    blocks: &'a BlockClasses,
    /// The blocks of this rank.
    local: Vec<BlockClass>,
}

/// Shards are aligned to this many elements.
const SHARD_ALIGNMENT: usize = 32;

impl RankModel<'_> {
    /// With the blocks of its stage.
    fn with_local_blocks(mut self) -> Self {
        let Self { stage, blocks, .. } = self;
        let layers = self.local_layers();
        let repeated = |class: &BlockClass| BlockClass { count: class.count * layers, ..*class };
        let embedding = match (stage.owns(0), stage.has_tied_copy(self.shape)) {
            (true, _) => &blocks.embedding[..],
            (_, true) => &blocks.token_embedding,
            _ => &[],
        };
        self.local.extend(embedding);
        self.local.extend(blocks.layer.iter().map(repeated).filter(|class| class.count > 0));
        self.local.extend(self.has_head().then_some(&blocks.head).into_iter().flatten());
        self
    }

    fn cost(&self) -> RankCost {
        let (memory, traffic, disk_io) = (self.memory(), self.traffic(), self.disk_io());
        RankCost { blocks: self.block_names(), memory, traffic, disk_io }
    }

    /// Names of this rank's blocks, without tiles.
    fn block_names(&self) -> Vec<String> {
        let (stage, head) = (self.stage, self.shape.num_layers + 1);
        let own = stage.local_chunks().flat_map(|chunk| stage.chunk_blocks[chunk].clone());
        let copy = stage.has_tied_copy(self.shape).then_some(0);
        let name = |block: usize| match block {
            0 => "embed".to_owned(),
            block if block == head => "head".to_owned(),
            layer => format!("layer.{}", layer - 1),
        };
        copy.into_iter().chain(own).map(name).collect()
    }

    /// Sums a quantity over this rank's blocks.
    fn sum(&self, of_block: impl Fn(&BlockClass) -> u64) -> u64 {
        self.local.iter().map(|class| class.count * of_block(class)).sum()
    }

    fn is_tiled(&self) -> bool {
        self.plan.tiles > 1
    }

    fn has_head(&self) -> bool {
        self.stage.owns(self.shape.num_layers + 1)
    }

    /// Number of layers in a chunk.
    fn layers(&self, chunk: usize) -> usize {
        let blocks = &self.stage.chunk_blocks[chunk];
        blocks.end.min(self.shape.num_layers + 1).saturating_sub(blocks.start.max(1))
    }

    /// Effective ZeRO stage: 0 in a sharding group of one; offloaded parameters are always sharded.
    fn zero(&self) -> usize {
        match (self.plan.mesh.shard, self.plan.offload.params.is_offloaded()) {
            (1, _) => 0,
            (_, true) => 3,
            _ => self.plan.zero,
        }
    }

    /// Ranks that shard a block.
    fn shard_ranks(&self) -> usize {
        if self.zero() > 0 { self.plan.mesh.shard } else { 1 }
    }

    /// Elements of a block, padded to equal shards.
    fn padded_len(&self, block: &BlockClass) -> usize {
        match self.shard_ranks() {
            1 => block.padded_len,
            ranks => block.padded_len.next_multiple_of(ranks * SHARD_ALIGNMENT),
        }
    }

    /// Elements of a block's shard.
    fn shard_len(&self, block: &BlockClass) -> usize {
        self.padded_len(block) / self.shard_ranks()
    }

    /// This rank's tokens of a micro-batch.
    fn rows(&self) -> usize {
        self.plan.micro_batch * self.shape.seq_len / self.plan.mesh.cp
    }

    /// Its rows of the residual stream, sharded under sequence parallelism.
    fn local_rows(&self) -> usize {
        if self.plan.sequence_parallel { self.rows() / self.plan.mesh.tp } else { self.rows() }
    }
}
