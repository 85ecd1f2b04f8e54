//! The pipeline schedule of a step: the passes of all micro-batches through this rank's chunks, and
//! the messages between stages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::chunk::{ChunkPass, DeferredBlock, TiedEmbedding, WeightGrads};
use super::device_timings::Phase;
use super::{Engine, MicroBatch, StepConfig, StepTimings, compute_time, timed};
use crate::buffer_pool::PooledTensor;
use crate::model::{LayerSaved, PassCtx, Residual, ScaledLoss, StreamGrad};
use crate::parallel::pipeline::P2pLinks;
use crate::parallel::tensor::all_reduce_view;
use crate::run_clock;
use crate::state::{GradSync, Result};
use regatta_predict::pipeline::{Action, Computation, Direction};

/// What the forward pass of a micro-batch through a chunk leaves for the backward pass.
struct SavedActivations {
    /// The residual stream after the last chunk of the model, the input of the head.
    head_input: Option<Residual>,
    layers: Vec<LayerSaved>,
}

/// The state of a step in progress.
struct StepState<'a> {
    config: &'a StepConfig,
    micro_batches: &'a [MicroBatch<'a>],
    links: P2pLinks,
    /// By chunk and micro-batch.
    saved: HashMap<(usize, usize), SavedActivations>,
    deferred: HashMap<(usize, usize), Vec<DeferredBlock>>,
    /// Sum of the losses, a scalar in device memory.
    loss: PooledTensor,
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
    ) -> Result<PooledTensor> {
        let actions = self.stage.actions(micro_batches.len()).into_owned();
        let mut step = StepState {
            config,
            micro_batches,
            links: P2pLinks::new(&self.groups, &self.stage, &actions),
            saved: HashMap::new(),
            deferred: HashMap::new(),
            loss: self.device_model.scalar(),
            timings,
        };
        use WeightGrads::{Deferred, Immediate};
        let passes = actions.len();
        for (done, action) in (1..).zip(actions) {
            match action.computation {
                Computation::Forward => self.forward(action, &mut step)?,
                Computation::Backward => self.backward(action, &mut step, Immediate)?,
                Computation::BackwardInput => self.backward(action, &mut step, Deferred)?,
                Computation::BackwardWeight => self.backward_weights(action, &mut step)?,
            }
            on_progress(done * micro_batches.len() / passes);
        }
        let StepState { links, loss, timings, .. } = step;
        let device = self.device_model.device.clone();
        timed(&mut timings.communication, || links.finish(&*device))?;
        timed(&mut timings.communication, || self.all_reduce_tied_embedding())?;
        Ok(loss)
    }

    fn forward(&mut self, action: Action, step: &mut StepState<'_>) -> Result<()> {
        self.begin_phase(Phase::Forward);
        let mut pass = self.chunk_pass(action, step);
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

    fn backward(
        &mut self,
        action: Action,
        step: &mut StepState<'_>,
        weight_grads: WeightGrads,
    ) -> Result<()> {
        let key = (action.chunk, action.micro_batch);
        let Some(SavedActivations { head_input, layers }) = step.saved.remove(&key) else {
            unreachable!("{action} without its forward pass")
        };
        self.begin_phase(Phase::Backward);
        let mut pass = self.chunk_pass(action, step);
        pass.prefetch_last_layer();
        let mut grad = match head_input {
            None => StreamGrad::new(step.recv(Direction::Backward, &pass)?),
            Some(x) => {
                let start = run_clock::now();
                let (sum, grad_scale) = (step.loss.view_mut(), 1.0 / step.config.tokens as f64);
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
        let mut pass = self.chunk_pass(action, step);
        let start = run_clock::now();
        pass.backward_weights(deferred)?;
        step.timings.backward += pass.compute_time(start, &mut step.timings.communication);
        Ok(())
    }

    fn begin_phase(&mut self, phase: Phase) {
        self.device_timings.begin(&*self.device_model.device, phase);
    }

    fn chunk_pass<'e>(&'e mut self, action: Action, step: &StepState<'e>) -> ChunkPass<'e> {
        let Self { device_model, state, stage, .. } = self;
        let micro_batch = step.micro_batches[action.micro_batch];
        let is_last = action.micro_batch + 1 == step.micro_batches.len();
        let sync = if is_last { GradSync::Final } else { GradSync::Accumulate };
        let ctx = device_model.train_ctx(step.config, &micro_batch);
        let (blocks, tied) =
            (stage.chunk_blocks[action.chunk].clone(), TiedEmbedding::new(device_model, stage));
        ChunkPass { ctx, micro_batch, blocks, sync, tied, device_model, store: state }
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
        let Self { device_model, state, stage, groups, .. } = self;
        // Recomputation: no activations are saved.
        let ctx = device_model.pass_ctx(micro_batch.batch, micro_batch.seq_len());
        let ctx = PassCtx { recompute: true, ..ctx };
        let forward = |chunk| Action { computation: Computation::Forward, chunk, micro_batch: 0 };
        let actions: Vec<Action> = stage.local_chunks().map(forward).collect();
        let mut links = P2pLinks::new(groups, stage, &actions);
        let mut loss = device_model.scalar();
        for chunk in stage.local_chunks() {
            let (micro_batch, sync) = (*micro_batch, GradSync::Deferred);
            let (blocks, tied) =
                (stage.chunk_blocks[chunk].clone(), TiedEmbedding::new(device_model, stage));
            let mut pass =
                ChunkPass { ctx, micro_batch, blocks, sync, tied, device_model, store: state };
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
        links.finish(ctx.device)?;
        device_model.read_scalar(&loss)
    }
}

impl StepState<'_> {
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
