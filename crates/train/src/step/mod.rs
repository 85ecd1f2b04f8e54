//! One training step: forward, backward, gradient reduction, optimizer update.

mod captured;
mod chunk;
mod device_model;
mod device_timings;
mod graph;
mod layer_params;
mod optimizer;
mod optimizer_graph;
mod run_pipeline;

pub use device_model::DeviceModel;

use device_timings::{DeviceTimings, Phase};
use graph::GraphCache;
use optimizer::OptimizerScalars;
use optimizer_graph::OptimizerGraph;
use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::data::Batch;
use crate::parallel::ProcessGroups;
use crate::parallel::context::ContextParallel;
use crate::run_clock;
pub use crate::state::StepError;
use crate::state::{BlockStore, ParamInit, Result, ShardingConfig};
use regatta_device::ops::{ArenaOverflow, ArenaUse};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::tensor::Tensor;
use regatta_model::units::format_memory;
use regatta_predict::pipeline::Stage;

/// Sequences that pass through the model together.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a> {
    /// Input tokens, sequence after sequence.
    pub inputs: &'a [u32],
    /// Target tokens: the inputs shifted by one.
    pub targets: &'a [u32],
    /// Number of sequences.
    pub batch: usize,
    /// Index of the first sequence in the step.
    pub first_sequence: u64,
}

impl<'a> MicroBatch<'a> {
    /// The sequences of a batch, of which the first has this index in the step.
    pub fn of(batch: &'a Batch, first_sequence: u64) -> Self {
        let Batch { inputs, targets, batch, .. } = batch;
        Self { inputs, targets, batch: *batch, first_sequence }
    }

    pub(crate) fn seq_len(&self) -> usize {
        self.inputs.len() / self.batch.max(1)
    }
}

/// This rank's tokens of a micro-batch whose sequences context parallelism may shard.
struct LocalTokens<'a> {
    inputs: Cow<'a, [u32]>,
    targets: Cow<'a, [u32]>,
    of: MicroBatch<'a>,
}

impl<'a> LocalTokens<'a> {
    fn new(of: MicroBatch<'a>, context: &ContextParallel) -> Self {
        let local = |tokens| context.local_tokens(tokens, of.seq_len());
        Self { inputs: local(of.inputs), targets: local(of.targets), of }
    }

    fn micro_batch(&self) -> MicroBatch<'_> {
        MicroBatch { inputs: &self.inputs, targets: &self.targets, ..self.of }
    }
}

/// The optimizer of a step, with its hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerStep {
    /// AdamW. Weight decay applies to matrices only; the gradient scale is set by clipping.
    AdamW(AdamW),
    /// SGD with momentum; likewise.
    Sgd(Sgd),
}

/// The configuration of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepConfig {
    /// Index of the step, from 0.
    pub step: u64,
    /// Tokens of the global batch: the loss is their mean.
    pub tokens: u64,
    /// The optimizer.
    pub optimizer: OptimizerStep,
    /// Maximum gradient norm; 0 disables clipping.
    pub grad_clip: f64,
    /// Dropout probability.
    pub dropout: f32,
    /// Random seed of the training.
    pub seed: u64,
    /// Activation recomputation in the backward pass.
    pub recompute: bool,
}

/// Time spent in each phase of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTimings {
    /// Forward passes of embedding and layers.
    pub forward: Duration,
    /// Backward passes, and the head, whose loss and gradients are fused.
    pub backward: Duration,
    /// Blocked on other ranks or the disk.
    pub communication: Duration,
    /// Zeroing, reducing and clipping gradients, and the update.
    pub optimizer: Duration,
}

/// The result of a step on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepResult {
    /// Sum of the losses of this rank's tokens.
    pub loss_sum: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Time spent in each phase.
    pub timings: StepTimings,
}

/// A model in training.
pub struct Engine {
    /// The model on its device.
    pub device_model: DeviceModel,
    /// Parameters, gradients and optimizer moments.
    pub state: BlockStore,
    /// The process groups.
    pub groups: ProcessGroups,
    /// This rank's pipeline stage and its schedule.
    pub stage: Stage,
    /// What a user should know, since [`Engine::take_notes`] was last called.
    pub notes: Vec<String>,
    has_noted_overflow: bool,
    device_timings: DeviceTimings,
    graphs: GraphCache,
    optimizer_graph: OptimizerGraph,
    /// `None` before the first step and during a step.
    optimizer_scalars: Option<OptimizerScalars>,
    /// Whether the graph of the optimizer step zeroed the gradients.
    has_zero_grads: bool,
    /// Sum of the losses of a step, a scalar in device memory; `None` during a step.
    loss: Option<Tensor>,
}

impl Engine {
    /// An engine on a single rank, with random parameters.
    pub fn single_rank(device_model: DeviceModel, seed: u64) -> Self {
        let stage = Stage::single(&device_model.model.shape);
        let (groups, config) = (ProcessGroups::single_rank(), ShardingConfig::default());
        Self::new(device_model, groups, stage, &config, ParamInit::Random { seed })
            .unwrap_or_else(|_| unreachable!("a single rank in memory does no I/O"))
    }

    /// An engine on a rank of several.
    pub fn new(
        mut device_model: DeviceModel,
        groups: ProcessGroups,
        stage: Stage,
        config: &ShardingConfig,
        init: ParamInit,
    ) -> Result<Self> {
        let is_local = device_model.model.retain_stage(&stage);
        let DeviceModel { model, device, .. } = &device_model;
        let state = BlockStore::new(model, device, &groups, config, &is_local, init)?;
        Ok(Self {
            device_model,
            state,
            groups,
            stage,
            notes: Vec::new(),
            has_noted_overflow: false,
            device_timings: DeviceTimings::default(),
            graphs: GraphCache::default(),
            optimizer_graph: OptimizerGraph::default(),
            optimizer_scalars: None,
            has_zero_grads: false,
            loss: None,
        })
    }

    /// Notes since the last call: about graphs, and about reserved memory that was too small.
    pub fn take_notes(&mut self) -> Vec<String> {
        let arena = self.device_model.device.arena_use().filter(|_| !self.has_noted_overflow);
        if let Some(ArenaUse { bytes, overflow: Some(overflow), .. }) = arena {
            self.has_noted_overflow = true;
            let ArenaOverflow { requested, free, largest_free } = overflow;
            let [bytes, requested, free, largest] =
                [bytes, requested, free, largest_free].map(format_memory);
            self.notes.push(format!(
                "{requested} of device memory are allocated on demand: {free} of the reserved {bytes} \
                 were free, at most {largest} in one piece"
            ));
        }
        std::mem::take(&mut self.notes)
    }

    /// One step over this rank's micro-batches.
    pub fn step<'a>(
        &mut self,
        config: &StepConfig,
        micro_batches: impl Iterator<Item = MicroBatch<'a>>,
    ) -> Result<StepResult> {
        self.step_with_progress(config, micro_batches, &mut |_| ())
    }

    /// One step, which calls `on_progress` with the number of finished micro-batches after each pass.
    pub fn step_with_progress<'a>(
        &mut self,
        config: &StepConfig,
        micro_batches: impl Iterator<Item = MicroBatch<'a>>,
        on_progress: &mut dyn FnMut(usize),
    ) -> Result<StepResult> {
        let mut timings = StepTimings::default();
        self.state.take_wait_time();
        let first_block = self.stage.chunk_blocks[self.stage.index].start;
        self.device_model.prefetch(&mut self.state, first_block);
        let device = self.device_model.device.clone();
        self.device_timings.begin(&*device, Phase::Optimizer);
        if !std::mem::take(&mut self.has_zero_grads) {
            timed(&mut timings.optimizer, || self.state.grads.zero());
        }
        let local = |micro_batch| LocalTokens::new(micro_batch, &self.device_model.context);
        let tokens: Vec<LocalTokens<'a>> = micro_batches.map(local).collect();
        let micro_batches: Vec<_> = tokens.iter().map(LocalTokens::micro_batch).collect();
        let loss = self.run_schedule(config, &micro_batches, &mut timings, on_progress)?;
        let start = run_clock::now();
        self.state.grads.wait()?;
        let Self { device_model, state, .. } = self;
        timings.optimizer += compute_time(device_model, state, start, &mut timings.communication);
        let start = run_clock::now();
        self.device_timings.begin(&*device, Phase::Optimizer);
        self.optimizer_step(config)?;
        self.device_timings.end(&*device);
        // The only host wait of a step.
        let loss_sum = self.device_model.read_scalar(&loss)?;
        self.loss = Some(loss);
        let grad_norm = self.grad_norm()?;
        timings.optimizer += run_clock::elapsed(start);
        std::mem::take(&mut self.device_timings).replace(&*device, &mut timings);
        Ok(StepResult { loss_sum: self.counted_loss(loss_sum), grad_norm, timings })
    }

    /// The sum of the losses of a micro-batch, without training. One rank of each model replica returns
    /// it, the others 0.
    pub fn loss(&mut self, micro_batch: &MicroBatch<'_>) -> Result<f64> {
        let tokens = LocalTokens::new(*micro_batch, &self.device_model.context);
        let loss = self.evaluate(&tokens.micro_batch())?;
        Ok(self.counted_loss(loss))
    }

    /// All ranks of a tensor-parallel group have the same loss; the first one counts it.
    fn counted_loss(&self, loss: f64) -> f64 {
        if self.groups.coord.tp == 0 { loss } else { 0.0 }
    }
}

fn compute_time(
    device_model: &DeviceModel,
    state: &mut BlockStore,
    start: Instant,
    communication: &mut Duration,
) -> Duration {
    let blocked = device_model.take_wait_time() + state.take_wait_time();
    *communication += blocked;
    run_clock::elapsed(start).saturating_sub(blocked)
}

fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = run_clock::now();
    let result = work();
    *total += run_clock::elapsed(start);
    result
}
