//! Access to local shards: by the optimizer, by checkpoints and by broadcasts.

use std::ops::Range;

use super::{BlockStore, Result};
use crate::checkpoint::StateTensor;
use regatta_device::tensor::{View, ViewMut};

/// What the optimizer updates of a block: this rank's shards.
pub struct OptimizerBlock<'a> {
    /// The shard's range in the block.
    pub shard: Range<usize>,
    /// Parameters.
    pub params: ViewMut<'a>,
    /// Reduced gradients.
    pub grads: View<'a>,
    /// First moment, or momentum.
    pub moment1: ViewMut<'a>,
    /// Second moment.
    pub moment2: ViewMut<'a>,
    /// Copy of the parameters that passes read, if it has another dtype.
    pub weights: Option<ViewMut<'a>>,
}

impl BlockStore {
    /// Starts to load the shards of the block that the optimizer updates next.
    pub fn prefetch_optimizer_block(&mut self, block: usize) -> Result<()> {
        if let Some(shards) = &mut self.param_shards {
            shards.prefetch(block)?;
        }
        Ok(self.moments.prefetch(block)?)
    }

    /// Loads the shards of a block for the optimizer, which overwrites the copy that passes read.
    pub fn load_optimizer_block(&mut self, block: usize) -> Result<()> {
        self.load_param_shard(block)?;
        if let Some(weights) = &mut self.weight_shards {
            weights.load_uninit(block)?;
        }
        Ok(self.moments.load(block)?)
    }

    /// The shards of a loaded block.
    pub fn optimizer_block(&mut self, block: usize) -> OptimizerBlock<'_> {
        let shard = self.shards[block].clone();
        let (moment1, moment2) = self.moments.view_mut(block).split_at(shard.len());
        let full = &mut self.blocks[block];
        let (params, weights) = match &mut self.param_shards {
            None => (full.shard_mut(&shard), None),
            Some(masters) => {
                let weights = match &mut self.weight_shards {
                    Some(weights) => Some(weights.view_mut(block)),
                    None if self.is_sharded => None,
                    None => Some(full.shard_mut(&shard)),
                };
                (masters.view_mut(block), weights)
            }
        };
        let grads = self.grads.shard(block);
        OptimizerBlock { shard, params, grads, moment1, moment2, weights }
    }

    /// Stores the updated shards of a block, and starts to all-gather replicated parameters.
    pub fn store_optimizer_block(&mut self, block: usize) -> Result<()> {
        self.moments.write_back(block)?;
        self.publish_shard(block)
    }

    /// This rank's parameter shard, to modify it outside of a step; other ranks see the change after
    /// [`BlockStore::all_gather_updated`].
    pub fn param_shard_mut(&mut self, block: usize) -> ViewMut<'_> {
        let shard = self.shards[block].clone();
        match &mut self.param_shards {
            Some(shards) => shards.view_mut(block),
            None => self.blocks[block].shard_mut(&shard),
        }
    }

    /// Calls `f` with this rank's shard of a block, loaded from its tier; an empty one if the rank does
    /// not have the block.
    pub fn with_shard<T>(
        &mut self,
        block: usize,
        kind: StateTensor,
        f: impl FnOnce(View<'_>) -> T,
    ) -> Result<T> {
        let shard = self.shards[block].clone();
        match kind {
            StateTensor::Parameter => {
                self.load_param_shard(block)?;
                let result = f(match &self.param_shards {
                    Some(shards) => shards.view(block),
                    None => self.blocks[block].shard(&shard),
                });
                self.param_shards.iter_mut().for_each(|shards| shards.release(block));
                Ok(result)
            }
            StateTensor::Moment1 | StateTensor::Moment2 => {
                self.moments.load(block)?;
                let both = self.moments.view(block);
                let range = moment_range(kind, shard.len());
                let result = f(if both.is_empty() { both } else { both.slice(range) });
                self.moments.release(block);
                Ok(result)
            }
        }
    }

    /// Copies elements out of this rank's shard of a block, from `start` in the block on.
    pub fn read_elements(
        &mut self,
        block: usize,
        kind: StateTensor,
        start: usize,
        to: &mut [f32],
    ) -> Result<()> {
        let (shard, device) = (self.shards[block].clone(), self.device.clone());
        let start = start - shard.start;
        if kind != StateTensor::Parameter {
            let start = moment_range(kind, shard.len()).start + start;
            return Ok(self.moments.read_elements(block, start, to)?);
        }
        self.cancel(block)?;
        match &mut self.param_shards {
            Some(shards) => shards.read_elements(block, start, to)?,
            None => {
                let params = self.blocks[block].shard(&shard);
                device.copy_to_host(params.slice(start..start + to.len()), to);
            }
        }
        Ok(())
    }

    /// Overwrites elements of this rank's shard of a block, from `start` in the block on. Other ranks see
    /// changed parameters after [`BlockStore::all_gather_updated`].
    pub fn write_elements(
        &mut self,
        block: usize,
        kind: StateTensor,
        start: usize,
        from: &[f32],
    ) -> Result<()> {
        let (shard, device) = (self.shards[block].clone(), self.device.clone());
        let start = start - shard.start;
        if kind != StateTensor::Parameter {
            let start = moment_range(kind, shard.len()).start + start;
            return Ok(self.moments.write_elements(block, start, from)?);
        }
        self.cancel(block)?;
        match &mut self.param_shards {
            Some(shards) => shards.write_elements(block, start, from)?,
            None => {
                let mut params = self.blocks[block].shard_mut(&shard);
                device.copy_from_host(from, params.slice(start..start + from.len()));
            }
        }
        Ok(())
    }

    /// Makes this rank's parameter shard resident.
    pub(super) fn load_param_shard(&mut self, block: usize) -> Result<()> {
        self.cancel(block)?;
        if let Some(shards) = &mut self.param_shards {
            shards.load(block)?;
        }
        Ok(())
    }
}

/// The range of a moment in the moments of a shard.
fn moment_range(kind: StateTensor, shard_len: usize) -> Range<usize> {
    if kind == StateTensor::Moment1 { 0..shard_len } else { shard_len..2 * shard_len }
}
