//! The pipeline schedule of a step: the passes of all micro-batches through this rank's chunks, and
//! the messages between stages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::chunk::{ChunkPass, DeferredBlock, TiedEmbedding, WeightGrads};
use super::device_timings::Phase;
use super::graph::GraphInputs;
use super::{Engine, MicroBatch, StepConfig, StepTimings, compute_time, timed};
use crate::buffer_pool::PooledTensor;
use crate::model::{LayerSaved, PassCtx, Residual, ScaledLoss, StreamGrad};
use crate::parallel::pipeline::P2pLinks;
use crate::parallel::tensor::all_reduce_view;
use crate::run_clock;
use crate::state::{GradSync, Result};
use regatta_device::ops::SCALAR_DTYPE;
use regatta_device::tensor::Tensor;
use regatta_predict::pipeline::{Action, Computation, Direction};

/// What the forward pass of a micro-batch through a chunk leaves for the backward pass.
pub(super) struct SavedActivations {
    /// The residual stream after the last chunk of the model, the input of the head.
    head_input: Option<Residual>,
    layers: Vec<LayerSaved>,
}

/// The state of a step in progress.
pub(super) struct StepState<'a> {
    pub config: &'a StepConfig,
    pub micro_batches: &'a [MicroBatch<'a>],
    links: P2pLinks,
    /// By chunk and micro-batch.
    pub saved: HashMap<(usize, usize), SavedActivations>,
    deferred: HashMap<(usize, usize), Vec<DeferredBlock>>,
    /// Sum of the losses, a scalar in device memory.
    pub loss: Tensor,
    timings: &'a mut StepTimings,
}

impl Engine {
    /// Runs the passes of a step. Returns the sum of the losses on the stage with the head, else 0, as a
    /// scalar in device memory.
    pub(super) fn run_schedule(
        &mut self,
        config: &StepConfig,
        micro_batches: &[MicroBatch<'_>],
        timings: &mut StepTimings,
        on_progress: &mut dyn FnMut(usize),
    ) -> Result<Tensor> {
        let actions = self.stage.actions(micro_batches.len()).into_owned();
        let mut step = StepState {
            config,
            micro_batches,
            links: P2pLinks::new(&self.groups, &self.stage, &actions),
            saved: HashMap::new(),
            deferred: HashMap::new(),
            loss: self.take_loss(),
            timings,
        };
        let mut done = 0;
        while done < actions.len() {
            done += self.run_next(&actions[done..], &mut step)?;
            on_progress(done * micro_batches.len() / actions.len());
        }
        let StepState { links, loss, timings, .. } = step;
        let device = self.device_model.device.clone();
        timed(&mut timings.communication, || links.finish(&*device))?;
        timed(&mut timings.communication, || self.all_reduce_tied_embedding())?;
        Ok(loss)
    }

    /// Runs the first of the actions, or the first two by graphs. Returns how many.
    fn run_next(&mut self, actions: &[Action], step: &mut StepState<'_>) -> Result<usize> {
        if let [first, second, ..] = actions
            && self.train_by_graphs([*first, *second], step)
        {
            return Ok(2);
        }
        use WeightGrads::{Deferred, Immediate};
        let Some(action) = actions.first().copied() else { return Ok(0) };
        match action.computation {
            Computation::Forward => self.forward(action, step, None)?,
            Computation::Backward => self.backward(action, step, Immediate, None)?,
            Computation::BackwardInput => self.backward(action, step, Deferred, None)?,
            Computation::BackwardWeight => self.backward_weights(action, step)?,
        }
        Ok(1)
    }

    /// The scalar in which losses are summed, 0. It has the same address in every step, for graphs.
    fn take_loss(&mut self) -> Tensor {
        let device = &self.device_model.device;
        let mut loss = self.loss.take().unwrap_or_else(|| device.zeros(1, SCALAR_DTYPE));
        device.zero(loss.view_mut());
        loss
    }

    /// The forward pass of a micro-batch through a chunk, with tokens from `inputs` if it is captured.
    pub(super) fn forward(
        &mut self,
        action: Action,
        step: &mut StepState<'_>,
        inputs: Option<&GraphInputs>,
    ) -> Result<()> {
        self.begin_phase(Phase::Forward);
        let mut pass = self.chunk_pass(action, step, inputs);
        pass.prefetch_first();
        let input = match pass.has_embedding() {
            true => None,
            false => Some(step.recv(Direction::Forward, &pass)?),
        };
        let start = run_clock::now();
        let (x, layers) = pass.forward(input)?;
        step.timings.forward += pass.compute_time(start, &mut step.timings.communication);
        let head_input = match pass.has_head() {
            true => Some(x),
            false => {
                let x = x.into_tensor(&pass.ctx);
                step.send(Direction::Forward, &pass, x).map(|()| None)?
            }
        };
        let saved = SavedActivations { head_input, layers };
        step.saved.insert((action.chunk, action.micro_batch), saved);
        Ok(())
    }

    /// The backward pass of a micro-batch through a chunk, with tokens from `inputs` if it is captured.
    pub(super) fn backward(
        &mut self,
        action: Action,
        step: &mut StepState<'_>,
        weight_grads: WeightGrads,
        inputs: Option<&GraphInputs>,
    ) -> Result<()> {
        let key = (action.chunk, action.micro_batch);
        let Some(SavedActivations { head_input, layers }) = step.saved.remove(&key) else {
            unreachable!("{action} without its forward pass")
        };
        self.begin_phase(Phase::Backward);
        let mut pass = self.chunk_pass(action, step, inputs);
        pass.prefetch_last_layer();
        let mut grad = match head_input {
            None => StreamGrad::new(step.recv(Direction::Backward, &pass)?),
            Some(x) => {
                let start = run_clock::now();
                let grad_scale = step.grad_scale();
                let sum = step.loss.view_mut();
                let grad = pass.head_backward(x, ScaledLoss { sum, grad_scale })?;
                step.timings.backward += pass.compute_time(start, &mut step.timings.communication);
                grad
            }
        };
        let start = run_clock::now();
        let deferred = pass.layers_backward(layers, &mut grad, weight_grads)?;
        let dx = grad.into_tensor();
        let dx = match pass.has_embedding() {
            true => pass.embedding_backward(dx).map(|()| None)?,
            false => Some(dx),
        };
        step.timings.backward += pass.compute_time(start, &mut step.timings.communication);
        if let Some(dx) = dx {
            step.send(Direction::Backward, &pass, dx)?;
        }
        if weight_grads == WeightGrads::Deferred {
            step.deferred.insert(key, deferred);
        }
        Ok(())
    }

    fn backward_weights(&mut self, action: Action, step: &mut StepState<'_>) -> Result<()> {
        let Some(deferred) = step.deferred.remove(&(action.chunk, action.micro_batch)) else {
            unreachable!("{action} without the gradient of its input")
        };
        self.begin_phase(Phase::Backward);
        let mut pass = self.chunk_pass(action, step, None);
        let start = run_clock::now();
        pass.backward_weights(deferred)?;
        step.timings.backward += pass.compute_time(start, &mut step.timings.communication);
        Ok(())
    }

    pub(super) fn begin_phase(&mut self, phase: Phase) {
        self.device_timings.begin(&*self.device_model.device, phase);
    }

    fn chunk_pass<'e>(
        &'e mut self,
        action: Action,
        step: &StepState<'e>,
        inputs: Option<&'e GraphInputs>,
    ) -> ChunkPass<'e> {
        let Self { device_model, state: store, stage, .. } = self;
        let micro_batch = step.micro_batches[action.micro_batch];
        let sync = step.grad_sync(action);
        let ctx = device_model.train_ctx(step.config, &micro_batch);
        let blocks = stage.chunk_blocks[action.chunk].clone();
        let tied = TiedEmbedding::new(device_model, stage);
        ChunkPass { ctx, micro_batch, inputs, blocks, sync, tied, device_model, store }
    }

    /// Sums the gradients of a tied embedding that the first and the last stage both have.
    fn all_reduce_tied_embedding(&mut self) -> Result<()> {
        let Self { device_model, state, stage, groups, .. } = self;
        if TiedEmbedding::new(device_model, stage) != TiedEmbedding::SplitAcrossStages {
            return Ok(());
        }
        let (ctx, table) = (device_model.pass_ctx(1, 1), &device_model.model.embedding.table);
        for block in table.blocks() {
            if let Some(comm) = &groups.embedding {
                let grads = state.grads.full(block);
                all_reduce_view(&**comm, &ctx, table.part_of_block(block, grads))?;
            }
            state.reduce_grads(block, GradSync::Final)?;
        }
        Ok(())
    }

    /// The loss of a micro-batch on the stage with the head, else 0, without a backward pass.
    pub(super) fn evaluate(&mut self, micro_batch: &MicroBatch<'_>) -> Result<f64> {
        let mut loss = self.take_loss();
        if !self.evaluate_by_graph(*micro_batch, &mut loss) {
            self.queue_evaluation(micro_batch, &mut loss, None)?;
        }
        let sum = self.device_model.read_scalar(&loss)?;
        self.loss = Some(loss);
        Ok(sum)
    }

    /// Adds the loss of a micro-batch to a scalar, with tokens from `inputs` if that is captured.
    pub(super) fn queue_evaluation(
        &mut self,
        micro_batch: &MicroBatch<'_>,
        loss: &mut Tensor,
        inputs: Option<&GraphInputs>,
    ) -> Result<()> {
        let Self { device_model, state: store, stage, groups, .. } = self;
        // Recomputation: no activations are saved.
        let ctx = device_model.pass_ctx(micro_batch.batch, micro_batch.seq_len());
        let ctx = PassCtx { recompute: true, ..ctx };
        let forward = |chunk| Action { computation: Computation::Forward, chunk, micro_batch: 0 };
        let actions: Vec<Action> = stage.local_chunks().map(forward).collect();
        let mut links = P2pLinks::new(groups, stage, &actions);
        for chunk in stage.local_chunks() {
            let (micro_batch, sync) = (*micro_batch, GradSync::Deferred);
            let blocks = stage.chunk_blocks[chunk].clone();
            let tied = TiedEmbedding::new(device_model, stage);
            let mut pass =
                ChunkPass { ctx, micro_batch, inputs, blocks, sync, tied, device_model, store };
            let input = match pass.has_embedding() {
                true => None,
                false => Some(links.recv(Direction::Forward, &ctx, pass.residual_len())?),
            };
            let (x, _) = pass.forward(input)?;
            if pass.has_head() {
                pass.head_loss(x, loss.view_mut())?;
            } else {
                links.send(Direction::Forward, ctx.device, x.into_tensor(&ctx))?;
            }
        }
        Ok(links.finish(ctx.device)?)
    }
}

impl StepState<'_> {
    /// How gradients are reduced after a pass.
    pub fn grad_sync(&self, action: Action) -> GradSync {
        let is_last = action.micro_batch + 1 == self.micro_batches.len();
        if is_last { GradSync::Final } else { GradSync::Accumulate }
    }

    /// Factor of the gradients: the loss is the mean over the global batch.
    pub fn grad_scale(&self) -> f64 {
        1.0 / self.config.tokens as f64
    }

    /// Receives the residual stream, or its gradient, from a neighbour stage.
    fn recv(&mut self, direction: Direction, pass: &ChunkPass<'_>) -> Result<PooledTensor> {
        let Self { links, timings, .. } = self;
        let recv = || links.recv(direction, &pass.ctx, pass.residual_len());
        Ok(timed(&mut timings.communication, recv)?)
    }

    /// Sends the residual stream, or its gradient, to a neighbour stage.
    fn send(
        &mut self,
        direction: Direction,
        pass: &ChunkPass<'_>,
        message: PooledTensor,
    ) -> Result<()> {
        let Self { links, timings, .. } = self;
        let send = || links.send(direction, pass.ctx.device, message);
        Ok(timed(&mut timings.communication, send)?)
    }
}

impl ChunkPass<'_> {
    /// The time since `start` without blocking, which is added to `communication`.
    fn compute_time(&mut self, start: Instant, communication: &mut Duration) -> Duration {
        compute_time(self.device_model, self.store, start, communication)
    }
}
