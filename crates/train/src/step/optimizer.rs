//! The end of a step: gradient clipping, and the optimizer update of this rank's shards.

use std::ops::Range;

use super::{Engine, OptimizerStep, StepConfig};
use crate::parallel::tensor::all_reduce_tensor;
use crate::state::{OptimizerBlock, Result};
use regatta_device::ops::{Device, OptimizerState, SCALAR_DTYPE, TOKEN_DTYPE};
use regatta_device::tensor::{Tensor, View};
use regatta_predict::shape::{ParamBlock, ParamSpec};

/// Scalars of the optimizer step in device memory, at the same addresses in every step, for graphs.
pub(super) struct OptimizerScalars {
    /// Sum of the squares of all gradients before clipping.
    squares: Tensor,
    clip_coefficient: Tensor,
    /// [`OptimizerStep::factor_words`], for graphs.
    factors: Tensor,
}

impl OptimizerScalars {
    fn new(device: &dyn Device, factors: usize) -> Self {
        Self {
            squares: device.zeros(1, SCALAR_DTYPE),
            clip_coefficient: device.zeros(1, SCALAR_DTYPE),
            factors: device.zeros(factors, TOKEN_DTYPE),
        }
    }

    pub fn addresses(&self) -> impl Iterator<Item = usize> {
        let tensors = [&self.squares, &self.clip_coefficient, &self.factors];
        tensors.into_iter().map(|tensor| tensor.view().address().addr().get())
    }

    /// Copies the factors of a step to the device, ahead of the launch of a graph.
    pub fn upload_factors(&mut self, device: &dyn Device, optimizer: OptimizerStep) {
        device.copy_tokens_from_host(&optimizer.factor_words(), self.factors.view_mut());
    }
}

/// Where kernels of the update read what differs between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateArgs {
    /// In their arguments.
    Host,
    /// In [`OptimizerScalars`]: in a capture, whose arguments are the same in every launch.
    InDeviceMemory,
}

impl Engine {
    /// Clips the gradients and updates the parameters. The sum of the squares of all gradients before
    /// clipping stays in device memory, for [`Engine::grad_norm`].
    pub(super) fn optimizer_step(&mut self, config: &StepConfig) -> Result<()> {
        let factors = config.optimizer.factor_words().len();
        let scalars = self.optimizer_scalars.take().filter(|old| old.factors.len() == factors);
        let device = self.device_model.device.clone();
        let mut scalars = scalars.unwrap_or_else(|| OptimizerScalars::new(&*device, factors));
        if !self.update_by_graph(config, &mut scalars) {
            self.queue_update(config, &mut scalars, UpdateArgs::Host)?;
        }
        self.optimizer_scalars = Some(scalars);
        Ok(())
    }

    /// Queues gradient norm, clip coefficient and update.
    pub(super) fn queue_update(
        &mut self,
        config: &StepConfig,
        scalars: &mut OptimizerScalars,
        args: UpdateArgs,
    ) -> Result<()> {
        self.sum_of_squares(&mut scalars.squares)?;
        let OptimizerScalars { squares, clip_coefficient, factors } = scalars;
        let (copies, device) = (self.copies() as f64, &self.device_model.device);
        let clip = clip_coefficient.view_mut();
        device.clip_coefficient(squares.view(), copies, config.grad_clip, clip);
        let factors = (args == UpdateArgs::InDeviceMemory).then(|| factors.view());
        let mut blocks = self.state.local_blocks().peekable();
        while let Some(block) = blocks.next() {
            self.state.load_optimizer_block(block)?;
            // The next block is loaded during the update of this one.
            if let Some(next) = blocks.peek() {
                self.state.prefetch_optimizer_block(*next)?;
            }
            self.update_block(config.optimizer, block, clip_coefficient.view(), factors);
            self.state.store_optimizer_block(block)?;
        }
        Ok(())
    }

    fn update_block(
        &mut self,
        optimizer: OptimizerStep,
        block: usize,
        grad_scale: View<'_>,
        factors: Option<View<'_>>,
    ) {
        let device = &*self.device_model.device;
        let OptimizerBlock { shard, params, grads, moment1, moment2, weights } =
            self.state.optimizer_block(block);
        let spec = &self.device_model.model.blocks[block];
        let decayed = merged_ranges(spec, &shard, ParamSpec::has_weight_decay);
        let state = OptimizerState {
            factors,
            grad: grads,
            grad_scale,
            moment1,
            moment2,
            param: params,
            weight: weights,
            decayed: &decayed,
        };
        optimizer.apply(device, state);
    }

    /// The norm of all gradients of the model in the last step.
    pub(super) fn grad_norm(&self) -> Result<f64> {
        let Some(OptimizerScalars { squares, .. }) = &self.optimizer_scalars else {
            return Ok(0.0);
        };
        Ok((self.device_model.read_scalar(squares)? / self.copies() as f64).sqrt())
    }

    /// How often the sum of squares counts every gradient: once for each replica, unless all ranks are
    /// replicas, which need not communicate.
    fn copies(&self) -> usize {
        let replicas = self.groups.mesh.data_ranks() / self.state.shard_count;
        if replicas == self.groups.mesh.ranks() { 1 } else { replicas }
    }

    /// Whether ranks have different gradients.
    pub(super) fn is_distributed(&self) -> bool {
        self.groups.mesh.data_ranks() / self.state.shard_count < self.groups.mesh.ranks()
    }

    /// The sum of the squares of all gradients of the model, [`Engine::copies`] times.
    fn sum_of_squares(&self, squares: &mut Tensor) -> Result<()> {
        let Self { device_model, state, groups, stage, .. } = self;
        device_model.device.zero(squares.view_mut());
        for block in
            state.local_blocks().filter(|block| stage.owns(device_model.model.users[*block]))
        {
            let (grads, spec) = (state.grads.shard(block), &device_model.model.blocks[block]);
            // Parameters that are replicated in the tensor-parallel group count once.
            let is_counted = |parameter: &ParamSpec| {
                let is_sharded = parameter.len() < parameter.full_shape.iter().product();
                groups.coord.tp == 0 || is_sharded
            };
            for range in merged_ranges(spec, &state.shards[block], is_counted) {
                device_model.device.sum_of_squares(grads.slice(range), squares.view_mut());
            }
        }
        if let Some(world) = groups.world.as_ref().filter(|_| self.is_distributed()) {
            let ctx = device_model.pass_ctx(1, 1);
            let own = std::mem::replace(squares, Tensor::zeros(0, SCALAR_DTYPE));
            *squares = all_reduce_tensor(&ctx, &**world, own)?;
        }
        Ok(())
    }
}

/// The parts of some parameters that are in a shard of their block, relative to the shard. Neighbours
/// are merged: what lies between them is padding, which is zero.
fn merged_ranges(
    block: &ParamBlock,
    shard: &Range<usize>,
    is_included: impl Fn(&ParamSpec) -> bool,
) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    let mut extends = false;
    for parameter in &block.parameters {
        let range = range_in_shard(parameter, shard);
        let included = is_included(parameter);
        match merged.last_mut() {
            Some(last) if included && extends => last.end = range.end.max(last.end),
            _ if included => merged.push(range),
            _ => {}
        }
        extends = included;
    }
    merged.retain(|range| !range.is_empty());
    merged
}

/// The part of a parameter that is in a shard of its block, relative to the shard.
fn range_in_shard(parameter: &ParamSpec, shard: &Range<usize>) -> Range<usize> {
    let clamp = |element: usize| element.clamp(shard.start, shard.end) - shard.start;
    let range = parameter.range();
    clamp(range.start)..clamp(range.end)
}

impl OptimizerStep {
    /// What differs between steps, as kernels of a graph read it.
    fn factor_words(&self) -> Vec<u32> {
        match self {
            Self::AdamW(adamw) => adamw.factor_words().to_vec(),
            Self::Sgd(sgd) => sgd.factor_words().to_vec(),
        }
    }

    fn apply(self, device: &dyn Device, state: OptimizerState<'_>) {
        match self {
            Self::AdamW(adamw) => device.adamw(&adamw, state),
            Self::Sgd(sgd) => device.sgd(&sgd, state),
        }
    }
}
