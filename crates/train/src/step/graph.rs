//! CUDA graphs of micro-batches: the passes of a micro-batch shape are captured once, and launched for all
//! later micro-batches of that shape, in training and in evaluations. A launch takes the place of hundreds of kernel launches.
//!
//! Forward and backward pass of a step are a graph each, so that events between them time the phases. Whatever differs
//! between micro-batches is in device memory: tokens, and keys and offsets of dropout masks. Activations are
//! in the buffers of the pool that were free in the capture. A graph is captured again after these were freed,
//! or if parameters or gradients have other addresses. Passes that communicate run without graphs.

use std::collections::HashMap;
use std::fmt;

use super::captured::Captured;
use super::chunk::WeightGrads;
use super::device_timings::Phase;
use super::run_pipeline::StepState;
use super::{Engine, MicroBatch};
use crate::state::{GradSync, Result};
use regatta_device::ops::{Device, Graph, GraphMasks, TOKEN_DTYPE};
use regatta_device::random::DropoutMask;
use regatta_device::tensor::{Tensor, View};
use regatta_predict::pipeline::{Action, Computation};

/// More shapes than a run has; the others run without graphs.
const MAX_SHAPES: usize = 8;

/// The graphs of an engine, by micro-batch shape.
#[derive(Default)]
pub(super) struct GraphCache {
    pub is_enabled: bool,
    shapes: HashMap<MicroBatchShape, ShapeState>,
}

/// The kind of passes, and all host arguments of their kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MicroBatchShape {
    batch: usize,
    seq_len: usize,
    /// `None` in evaluations.
    training: Option<TrainingArgs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TrainingArgs {
    recompute: bool,
    dropout_bits: u32,
    grad_scale_bits: u64,
}

impl TrainingArgs {
    fn of(step: &StepState<'_>) -> Self {
        Self {
            recompute: step.config.recompute,
            dropout_bits: step.config.dropout.to_bits(),
            grad_scale_bits: step.grad_scale().to_bits(),
        }
    }
}

impl fmt::Display for MicroBatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.training.is_some() { "" } else { "validation " };
        write!(f, "{prefix}micro-batches of {} x {} tokens", self.batch, self.seq_len)
    }
}

struct ShapeState {
    // Before the inputs, which they read.
    graphs: Captured<GraphMemory, Vec<PassGraph>>,
    inputs: GraphInputs,
}

/// The graph of a pass.
struct PassGraph {
    /// The phase of a step; `None` in evaluations.
    phase: Option<Phase>,
    graph: Graph,
}

/// A micro-batch whose passes may run by graphs.
struct GraphedMicroBatch<'a> {
    shape: MicroBatchShape,
    tokens: MicroBatch<'a>,
    masks: Vec<DropoutMask>,
    /// Address of the loss.
    loss: usize,
}

/// Captures the passes of a micro-batch, with tokens and masks from device memory.
type Capture<'a> =
    &'a mut dyn FnMut(&mut Engine, &GraphInputs, GraphMasks<'_>) -> Result<Vec<PassGraph>>;

/// The memory that graphs use, besides their inputs.
#[derive(Debug, PartialEq, Eq)]
struct GraphMemory {
    /// Number of trims of the buffer pool.
    pool_trims: u64,
    /// Addresses of parameters, gradients and the loss.
    addresses: Vec<usize>,
}

/// What differs between the micro-batches of a shape, in one tensor of device memory.
pub(super) struct GraphInputs {
    /// Words of the dropout masks, then input tokens, then target tokens.
    words: Tensor,
    masks: usize,
    tokens: usize,
}

impl GraphInputs {
    fn new(device: &dyn Device, masks: usize, tokens: usize) -> Self {
        let elements = masks * DropoutMask::WORDS + 2 * tokens;
        Self { words: device.zeros(elements, TOKEN_DTYPE), masks, tokens }
    }

    fn upload(&mut self, device: &dyn Device, masks: &[DropoutMask], micro_batch: &MicroBatch<'_>) {
        let mut words: Vec<u32> = masks.iter().flat_map(DropoutMask::words).collect();
        words.extend(micro_batch.inputs);
        words.extend(micro_batch.targets);
        device.copy_tokens_from_host(&words, self.words.view_mut());
    }

    fn mask_words(&self) -> View<'_> {
        self.words.view().slice(0..self.masks * DropoutMask::WORDS)
    }

    /// Input tokens.
    pub fn inputs(&self) -> View<'_> {
        let first = self.masks * DropoutMask::WORDS;
        self.words.view().slice(first..first + self.tokens)
    }

    /// Target tokens.
    pub fn targets(&self) -> View<'_> {
        self.words.view().slice(self.words.len() - self.tokens..self.words.len())
    }
}

impl GraphCache {
    /// Removes the state of a shape, or begins with a new one; `None` if there are too many.
    fn take(
        &mut self,
        shape: MicroBatchShape,
        new: impl FnOnce() -> GraphInputs,
    ) -> Option<ShapeState> {
        if let Some(state) = self.shapes.remove(&shape) {
            return Some(state);
        }
        let new = || ShapeState { graphs: Captured::default(), inputs: new() };
        (self.shapes.len() < MAX_SHAPES).then(new)
    }
}

impl Engine {
    /// Lets steps use CUDA graphs where the device supports them.
    pub fn enable_graphs(&mut self) {
        self.graphs.is_enabled = true;
    }

    /// Runs forward and backward pass of a micro-batch by graphs. Returns false if they must run without.
    pub(super) fn train_by_graphs(
        &mut self,
        passes: [Action; 2],
        step: &mut StepState<'_>,
    ) -> bool {
        let [forward, backward] = passes;
        let is_pair = forward.computation == Computation::Forward
            && backward == Action { computation: Computation::Backward, ..forward };
        if !is_pair || !self.may_use_graphs(step.grad_sync(forward)) {
            return false;
        }
        let tokens = step.micro_batches[forward.micro_batch];
        let ctx = self.device_model.train_ctx(step.config, &tokens);
        let training = Some(TrainingArgs::of(step));
        let micro_batch = GraphedMicroBatch {
            shape: MicroBatchShape { batch: ctx.batch, seq_len: ctx.seq_len, training },
            masks: self.device_model.model.dropout_masks(&ctx),
            loss: address(&step.loss),
            tokens,
        };
        self.run_by_graphs(&micro_batch, &mut |engine, inputs, masks| {
            let captured = engine.capture_training(passes, step, inputs, masks);
            // After an error, activations may be left.
            captured.inspect_err(|_| step.saved.clear())
        })
    }

    /// Adds the loss of a micro-batch to a scalar by a graph. Returns false if that must be done without.
    pub(super) fn evaluate_by_graph(&mut self, tokens: MicroBatch<'_>, loss: &mut Tensor) -> bool {
        if !self.may_use_graphs(GradSync::Deferred) {
            return false;
        }
        let (batch, seq_len) = (tokens.batch, tokens.seq_len());
        let shape = MicroBatchShape { batch, seq_len, training: None };
        let micro_batch =
            GraphedMicroBatch { shape, masks: Vec::new(), loss: address(loss), tokens };
        self.run_by_graphs(&micro_batch, &mut |engine, inputs, masks| {
            let device = engine.device_model.device.clone();
            let mut pass = || engine.queue_evaluation(&tokens, loss, Some(inputs));
            Ok(vec![PassGraph { phase: None, graph: capture_pass(&*device, masks, &mut pass)? }])
        })
    }

    /// Whether passes may run by graphs: they go through the whole model and do not communicate.
    fn may_use_graphs(&self, sync: GradSync) -> bool {
        let Self { device_model, groups, stage, state, graphs, .. } = self;
        let is_whole = stage.chunk_blocks.len() == 1 && groups.mesh.tp == 1 && groups.mesh.cp == 1;
        graphs.is_enabled
            && is_whole
            && device_model.device.can_capture()
            && state.is_pass_local(sync)
            // Graphs overwrite the buffers that were free in the capture.
            && device_model.pool.is_idle()
    }

    /// Returns whether graphs were launched.
    fn run_by_graphs(&mut self, micro_batch: &GraphedMicroBatch<'_>, capture: Capture<'_>) -> bool {
        let GraphedMicroBatch { shape, masks, .. } = micro_batch;
        let device = &*self.device_model.device;
        let inputs = || GraphInputs::new(device, masks.len(), shape.batch * shape.seq_len);
        let Some(mut state) = self.graphs.take(*shape, inputs) else { return false };
        let result = self.run_shape(&mut state, micro_batch, capture);
        if result.is_err() {
            // Buffers that the capture allocated may lack memory.
            self.device_model.pool.trim();
        }
        let by_graph = "as CUDA graphs";
        let notes = &mut self.notes;
        let is_launched =
            state.graphs.outcome(result, &format_args!("{shape} run"), by_graph, notes);
        self.graphs.shapes.insert(*shape, state);
        is_launched
    }

    /// Returns whether the graphs of a shape were launched: there are none in its first passes.
    fn run_shape(
        &mut self,
        state: &mut ShapeState,
        micro_batch: &GraphedMicroBatch<'_>,
        capture: Capture<'_>,
    ) -> Result<bool> {
        if !state.graphs.is_due(self.graph_memory(micro_batch.loss)) {
            return Ok(false);
        }
        let GraphedMicroBatch { masks, tokens, .. } = micro_batch;
        let graphs = match state.graphs.graph.take() {
            Some(graphs) => graphs,
            None => {
                let words = state.inputs.mask_words();
                capture(self, &state.inputs, GraphMasks { masks, words })?
            }
        };
        state.inputs.upload(&*self.device_model.device, masks, tokens);
        self.launch(state.graphs.graph.insert(graphs))?;
        Ok(true)
    }

    fn graph_memory(&self, loss: usize) -> GraphMemory {
        let mut addresses = self.state.addresses();
        addresses.push(loss);
        GraphMemory { pool_trims: self.device_model.pool.trims(), addresses }
    }

    fn capture_training(
        &mut self,
        [forward, backward]: [Action; 2],
        step: &mut StepState<'_>,
        inputs: &GraphInputs,
        masks: GraphMasks<'_>,
    ) -> Result<Vec<PassGraph>> {
        let device = self.device_model.device.clone();
        let mut pass = || self.forward(forward, step, Some(inputs));
        let forward = capture_pass(&*device, masks, &mut pass)?;
        let mut pass = || self.backward(backward, step, WeightGrads::Immediate, Some(inputs));
        let backward = capture_pass(&*device, masks, &mut pass)?;
        Ok(vec![
            PassGraph { phase: Some(Phase::Forward), graph: forward },
            PassGraph { phase: Some(Phase::Backward), graph: backward },
        ])
    }

    fn launch(&mut self, graphs: &[PassGraph]) -> Result<()> {
        let device = self.device_model.device.clone();
        for PassGraph { phase, graph } in graphs {
            phase.iter().for_each(|phase| self.begin_phase(*phase));
            // SAFETY: parameters, gradients and the loss have the addresses of the capture, the buffer pool
            // was not trimmed since, and the inputs live as long as the graphs.
            unsafe { device.launch_graph(graph) }?;
        }
        Ok(())
    }
}

/// Captures a pass.
pub(super) fn capture_pass(
    device: &dyn Device,
    masks: GraphMasks<'_>,
    pass: &mut dyn FnMut() -> Result<()>,
) -> Result<Graph> {
    let mut result = Ok(());
    let graph = device.capture(masks, &mut || result = pass())?;
    result.map(|()| graph)
}

fn address(tensor: &Tensor) -> usize {
    tensor.view().address().addr().get()
}
