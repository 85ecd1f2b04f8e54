//! The end of a step: gradient clipping, and the optimizer update of this rank's shards.

use std::ops::Range;

use regatta_comm::{Collectives, ReduceOp};

use super::{Engine, OptimizerStep, StepConfig};
use crate::state::{OptimizerBlock, Result};
use regatta_device::ops::Device;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::tensor::{View, ViewMut};
use regatta_predict::shape::ParamSpec;

impl Engine {
    /// Clips the gradients and updates the parameters. Returns the gradient norm before clipping.
    pub(super) fn optimizer_step(&mut self, config: &StepConfig) -> Result<f64> {
        let norm = self.grad_norm()?;
        let optimizer = config.optimizer.with_grad_scale(clip_coefficient(norm, config.grad_clip));
        let mut blocks = self.state.local_blocks().peekable();
        while let Some(block) = blocks.next() {
            self.state.load_optimizer_block(block)?;
            // The disk reads the next block during the update of this one.
            if let Some(next) = blocks.peek() {
                self.state.prefetch_optimizer_block(*next);
            }
            self.update_block(optimizer, block);
            self.state.store_optimizer_block(block)?;
        }
        Ok(norm)
    }

    fn update_block(&mut self, optimizer: OptimizerStep, block: usize) {
        let device = &*self.device_model.device;
        let OptimizerBlock { shard, mut params, grads, mut moment1, mut moment2 } =
            self.state.optimizer_block(block);
        for parameter in &self.device_model.model.blocks[block].parameters {
            let range = || range_in_shard(parameter, &shard);
            let moments = [moment1.slice(range()), moment2.slice(range())];
            let (grads, params) = (grads.slice(range()), params.slice(range()));
            optimizer.apply(device, parameter.has_weight_decay(), grads, moments, params);
        }
    }

    /// The norm of all gradients of the model, over all ranks.
    fn grad_norm(&self) -> Result<f64> {
        let Self { device_model, state, groups, stage } = self;
        let mut squares = 0.0;
        for block in
            state.local_blocks().filter(|block| stage.owns(device_model.model.users[*block]))
        {
            let grads = state.grads.shard(block);
            for parameter in &device_model.model.blocks[block].parameters {
                // Parameters that are replicated in the tensor-parallel group count once.
                let is_sharded = parameter.len() < parameter.full_shape.iter().product();
                if groups.coord.tp == 0 || is_sharded {
                    let range = range_in_shard(parameter, &state.shards[block]);
                    squares += device_model.device.sum_of_squares(grads.slice(range));
                }
            }
        }
        let replicas = groups.mesh.data_ranks() / state.shard_count;
        let mut sum = [squares / replicas as f64];
        if let Some(world) = groups.world.as_ref().filter(|_| replicas < groups.mesh.ranks()) {
            world.all_reduce(&mut sum, ReduceOp::Sum)?;
            return Ok(sum[0].sqrt());
        }
        Ok(squares.sqrt())
    }
}

/// The part of a parameter that is in a shard of its block, relative to the shard.
fn range_in_shard(parameter: &ParamSpec, shard: &Range<usize>) -> Range<usize> {
    let clamp = |element: usize| element.clamp(shard.start, shard.end) - shard.start;
    let range = parameter.range();
    clamp(range.start)..clamp(range.end)
}

impl OptimizerStep {
    fn with_grad_scale(self, scale: f64) -> Self {
        match self {
            Self::AdamW(adamw) => Self::AdamW(AdamW { grad_scale: scale, ..adamw }),
            Self::Sgd(sgd) => Self::Sgd(Sgd { grad_scale: scale, ..sgd }),
        }
    }

    fn apply(
        self,
        device: &dyn Device,
        has_weight_decay: bool,
        grads: View<'_>,
        moments: [ViewMut<'_>; 2],
        params: ViewMut<'_>,
    ) {
        let decay = |decay: f64| if has_weight_decay { decay } else { 0.0 };
        match self {
            Self::AdamW(adamw) => {
                let adamw = AdamW { weight_decay: decay(adamw.weight_decay), ..adamw };
                device.adamw(&adamw, grads, moments, params);
            }
            Self::Sgd(sgd) => {
                let sgd = Sgd { weight_decay: decay(sgd.weight_decay), ..sgd };
                let [momentum, _] = moments;
                device.sgd(&sgd, grads, momentum, params);
            }
        }
    }
}

/// The factor by which clipping scales gradients of this norm.
fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 }
}
