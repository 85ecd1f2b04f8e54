//! CUDA graphs of micro-batches: the passes of a micro-batch shape are captured once, and launched for all
//! later micro-batches of that shape. A launch takes the place of hundreds of kernel launches.
//!
//! Forward and backward pass are a graph each, so that events between them time the phases. Whatever differs
//! between micro-batches is in device memory: tokens, and keys and offsets of dropout masks. Activations are
//! in the buffers of the pool that were free in the capture. A graph is captured again after these were freed,
//! or if parameters or gradients have other addresses. Passes that communicate run without graphs.

use std::collections::HashMap;
use std::fmt;

use super::chunk::WeightGrads;
use super::device_timings::Phase;
use super::run_pipeline::StepState;
use super::{Engine, MicroBatch};
use crate::model::PassCtx;
use crate::state::Result;
use regatta_device::ops::{Device, Graph, GraphMasks, TOKEN_DTYPE};
use regatta_device::random::DropoutMask;
use regatta_device::tensor::{Tensor, View};
use regatta_predict::pipeline::{Action, Computation};

/// Passes before a capture: they compile kernels, choose GEMM algorithms and allocate buffers.
const WARMUP_PASSES: u32 = 2;

/// More shapes than a run has; the others run without graphs.
const MAX_SHAPES: usize = 8;

/// The graphs of an engine, by micro-batch shape.
#[derive(Default)]
pub(super) struct GraphCache {
    pub is_enabled: bool,
    shapes: HashMap<MicroBatchShape, ShapeState>,
    pub notes: Vec<String>,
}

/// All host arguments of the kernels of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MicroBatchShape {
    batch: usize,
    seq_len: usize,
    recompute: bool,
    dropout_bits: u32,
    grad_scale_bits: u64,
}

impl MicroBatchShape {
    fn new(ctx: &PassCtx, step: &StepState<'_>) -> Self {
        Self {
            batch: ctx.batch,
            seq_len: ctx.seq_len,
            recompute: ctx.recompute,
            dropout_bits: step.config.dropout.to_bits(),
            grad_scale_bits: step.grad_scale().to_bits(),
        }
    }
}

impl fmt::Display for MicroBatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batches of {} x {} tokens", self.batch, self.seq_len)
    }
}

struct ShapeState {
    // Before the inputs, which they read.
    graphs: Option<MicroBatchGraphs>,
    inputs: GraphInputs,
    memory: GraphMemory,
    /// Passes since the memory changed.
    warmup_passes: u32,
    has_failed: bool,
    /// Whether a note says that there are graphs.
    is_noted: bool,
}

struct MicroBatchGraphs {
    forward: Graph,
    backward: Graph,
}

/// The memory that graphs use, besides their inputs.
#[derive(Debug, Default, PartialEq, Eq)]
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
        let new = || ShapeState {
            inputs: new(),
            memory: GraphMemory::default(),
            warmup_passes: 0,
            graphs: None,
            has_failed: false,
            is_noted: false,
        };
        (self.shapes.len() < MAX_SHAPES).then(new)
    }
}

impl Engine {
    /// Lets steps use CUDA graphs where the device supports them.
    pub fn enable_graphs(&mut self) {
        self.graphs.is_enabled = true;
    }

    /// Notes about graphs since the last call.
    pub fn take_graph_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.graphs.notes)
    }

    /// Runs forward and backward pass of a micro-batch by graphs. Returns false if they must run without.
    pub(super) fn run_graphs(&mut self, passes: [Action; 2], step: &mut StepState<'_>) -> bool {
        if !self.may_use_graphs(passes, step) {
            return false;
        }
        let Self { device_model, graphs, .. } = self;
        let micro_batch = step.micro_batches[passes[0].micro_batch];
        let ctx = device_model.train_ctx(step.config, &micro_batch);
        let (shape, masks) =
            (MicroBatchShape::new(&ctx, step), device_model.model.dropout_masks(&ctx));
        let inputs = || GraphInputs::new(ctx.device, masks.len(), ctx.rows());
        let Some(mut state) = graphs.take(shape, inputs) else { return false };
        let result = self.run_shape(&mut state, passes, step, &masks);
        if let Err(error) = &result {
            self.graphs.notes.push(format!("{shape} run without a CUDA graph: {error}"));
            (state.has_failed, state.graphs) = (true, None);
            // Buffers that the capture allocated may lack memory.
            step.saved.clear();
            self.device_model.trim_buffers();
        } else if state.graphs.is_some() && !std::mem::replace(&mut state.is_noted, true) {
            self.graphs.notes.push(format!("{shape} run as CUDA graphs"));
        }
        self.graphs.shapes.insert(shape, state);
        result.unwrap_or(false)
    }

    /// Whether two passes may run by graphs: they are those of one micro-batch through the whole model, and
    /// do not communicate.
    fn may_use_graphs(&self, [forward, backward]: [Action; 2], step: &StepState<'_>) -> bool {
        let Self { device_model, groups, stage, state, graphs, .. } = self;
        let is_pair = forward.computation == Computation::Forward
            && backward == Action { computation: Computation::Backward, ..forward };
        let is_whole = stage.chunk_blocks.len() == 1 && groups.mesh.tp == 1 && groups.mesh.cp == 1;
        graphs.is_enabled
            && is_pair
            && is_whole
            && device_model.device.can_capture()
            && state.is_pass_local(step.grad_sync(forward))
            // Graphs overwrite the buffers that were free in the capture.
            && device_model.pool().is_idle()
    }

    /// Returns whether the graphs of a shape were launched: there are none in its first passes.
    fn run_shape(
        &mut self,
        state: &mut ShapeState,
        passes: [Action; 2],
        step: &mut StepState<'_>,
        masks: &[DropoutMask],
    ) -> Result<bool> {
        if state.has_failed {
            return Ok(false);
        }
        let memory = self.graph_memory(step);
        if state.memory != memory {
            (state.memory, state.graphs, state.warmup_passes) = (memory, None, 0);
        }
        if state.warmup_passes < WARMUP_PASSES {
            state.warmup_passes += 1;
            return Ok(false);
        }
        let graphs = match state.graphs.take() {
            Some(graphs) => graphs,
            None => self.capture(&state.inputs, passes, step, masks)?,
        };
        let micro_batch = &step.micro_batches[passes[0].micro_batch];
        state.inputs.upload(&*self.device_model.device, masks, micro_batch);
        self.launch(state.graphs.insert(graphs))?;
        Ok(true)
    }

    fn graph_memory(&self, step: &StepState<'_>) -> GraphMemory {
        let mut addresses = self.state.addresses();
        addresses.push(step.loss.view().address().addr().get());
        GraphMemory { pool_trims: self.device_model.pool().trims(), addresses }
    }

    fn capture(
        &mut self,
        inputs: &GraphInputs,
        [forward, backward]: [Action; 2],
        step: &mut StepState<'_>,
        masks: &[DropoutMask],
    ) -> Result<MicroBatchGraphs> {
        let device = self.device_model.device.clone();
        let masks = GraphMasks { masks, words: inputs.mask_words() };
        let mut result = Ok(());
        let mut queue = || result = self.forward(forward, step, Some(inputs));
        let forward = device.capture(masks, &mut queue)?;
        result?;
        let mut result = Ok(());
        let mut queue =
            || result = self.backward(backward, step, WeightGrads::Immediate, Some(inputs));
        let backward = device.capture(masks, &mut queue)?;
        result?;
        Ok(MicroBatchGraphs { forward, backward })
    }

    fn launch(&mut self, graphs: &MicroBatchGraphs) -> Result<()> {
        let MicroBatchGraphs { forward, backward } = graphs;
        let device = self.device_model.device.clone();
        for (phase, graph) in [(Phase::Forward, forward), (Phase::Backward, backward)] {
            self.begin_phase(phase);
            // SAFETY: parameters, gradients and the loss have the addresses of the capture, the buffer pool
            // was not trimmed since, and the inputs live as long as the graphs.
            unsafe { device.launch_graph(graph) }?;
        }
        Ok(())
    }
}
