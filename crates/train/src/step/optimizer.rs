//! The end of a step: gradient clipping, and the optimizer update of this rank's shards.

use std::ops::Range;

use super::{Engine, OptimizerStep, StepConfig};
use crate::buffer_pool::PooledTensor;
use crate::parallel::tensor::all_reduce;
use crate::state::{OptimizerBlock, Result};
use regatta_device::ops::{Device, OptimizerState};
use regatta_device::tensor::View;
use regatta_predict::shape::{ParamBlock, ParamSpec};

impl Engine {
    /// Clips the gradients and updates the parameters. Returns the sum of the squares of all gradients
    /// before clipping, a scalar in device memory, for [`Engine::grad_norm`].
    pub(super) fn optimizer_step(&mut self, config: &StepConfig) -> Result<PooledTensor> {
        let squares = self.sum_of_squares()?;
        let mut scale = self.device_model.scalar();
        let (copies, device) = (self.copies() as f64, &self.device_model.device);
        device.clip_coefficient(squares.view(), copies, config.grad_clip, scale.view_mut());
        let mut blocks = self.state.local_blocks().peekable();
        while let Some(block) = blocks.next() {
            self.state.load_optimizer_block(block)?;
            // The next block is loaded during the update of this one.
            if let Some(next) = blocks.peek() {
                self.state.prefetch_optimizer_block(*next)?;
            }
            self.update_block(config.optimizer, block, scale.view());
            self.state.store_optimizer_block(block)?;
        }
        Ok(squares)
    }

    fn update_block(&mut self, optimizer: OptimizerStep, block: usize, grad_scale: View<'_>) {
        let device = &*self.device_model.device;
        let OptimizerBlock { shard, params, grads, moment1, moment2, weights } =
            self.state.optimizer_block(block);
        let spec = &self.device_model.model.blocks[block];
        let decayed = merged_ranges(spec, &shard, ParamSpec::has_weight_decay);
        let state = OptimizerState {
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

    /// The norm of all gradients of the model, given the sum of their squares over all ranks.
    pub(super) fn grad_norm(&self, squares: &PooledTensor) -> Result<f64> {
        Ok((self.device_model.read_scalar(squares)? / self.copies() as f64).sqrt())
    }

    /// How often the sum of squares counts every gradient: once for each replica, unless all ranks are
    /// replicas, which need not communicate.
    fn copies(&self) -> usize {
        let replicas = self.groups.mesh.data_ranks() / self.state.shard_count;
        if replicas == self.groups.mesh.ranks() { 1 } else { replicas }
    }

    /// Whether ranks have different gradients.
    fn is_distributed(&self) -> bool {
        self.groups.mesh.data_ranks() / self.state.shard_count < self.groups.mesh.ranks()
    }

    /// The sum of the squares of all gradients of the model, [`Engine::copies`] times.
    fn sum_of_squares(&self) -> Result<PooledTensor> {
        let Self { device_model, state, groups, stage, .. } = self;
        let mut squares = device_model.scalar();
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
        let Some(world) = groups.world.as_ref().filter(|_| self.is_distributed()) else {
            return Ok(squares);
        };
        Ok(all_reduce(&device_model.pass_ctx(1, 1), &**world, squares)?)
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
    fn apply(self, device: &dyn Device, state: OptimizerState<'_>) {
        match self {
            Self::AdamW(adamw) => device.adamw(&adamw, state),
            Self::Sgd(sgd) => device.sgd(&sgd, state),
        }
    }
}
