//! Gradients, block by block: accumulated over the micro-batches of a step, and reduced over
//! data-parallel ranks while the backward pass continues.
//!
//! | ZeRO stage | accumulated in | reduction |
//! |---|---|---|
//! | 0 | full blocks | all-reduce after the last micro-batch |
//! | 1 | full blocks | reduce-scatter after the last micro-batch |
//! | 2, 3 | local shards | reduce-scatter after each micro-batch |
//!
//! With hybrid sharding, reduced shards are then all-reduced over the replica group.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use regatta_comm::{DType, Pending};

use super::{Result, ZeroPartition};
use crate::buffer_pool::{BufferPool, alloc_comm_buffer, byte_len};
use crate::parallel::{ZeroStage, collective};
use crate::run_clock;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_predict::cost::StateBytes;
use regatta_predict::shape::ParamBlock;

/// What happens to the gradients of a block after a pass added its contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradSync {
    /// Nothing: the other pipeline stage with a tied embedding contributes first.
    Deferred,
    /// More contributions follow in this step: reduced only if gradients are sharded.
    Accumulate,
    /// The last contribution of the step: reduced.
    Final,
}

/// The gradients of a rank's blocks.
pub struct GradStore {
    device: Arc<dyn Device>,
    partition: ZeroPartition,
    dtype: DType,
    /// `None` for blocks of other ranks.
    blocks: Vec<Option<GradBlock>>,
    /// Zeroed full blocks if gradients are sharded; else buffers for replica all-reduces.
    pool: BufferPool,
    reduce_scatters: VecDeque<ReduceScatter>,
    all_reduces: VecDeque<AllReduce>,
    wait_time: Duration,
}

struct GradBlock {
    padded_len: usize,
    shard_range: Range<usize>,
    /// `None` while it is reduced; if gradients are sharded, also between passes.
    full: Option<Tensor>,
    /// Accumulated shard, if gradients are sharded; `None` while it is reduced.
    shard: Option<Tensor>,
}

/// A full block in flight in the shard group.
struct ReduceScatter {
    block: usize,
    sync: GradSync,
    pending: Pending,
}

/// A full block or a shard in flight in the replica group.
struct AllReduce {
    block: usize,
    /// With ZeRO 1, the full block from which the shard was copied.
    full: Option<Tensor>,
    pending: Pending,
}

impl GradStore {
    /// Zeroed gradients.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        partition: &ZeroPartition,
        blocks: &[ParamBlock],
        is_local: &[bool],
    ) -> Self {
        let dtype = device.master_dtype();
        let ZeroPartition { shard_group, replica_group, .. } = partition;
        let is_sharded = partition.stage >= ZeroStage::Two;
        let full_group = shard_group.clone().or_else(|| replica_group.clone());
        let new_block = |(block, is_local): (&ParamBlock, &bool)| {
            let (padded_len, shard_range) = (partition.padded_len(block), partition.shard(block));
            let full = || alloc_comm_buffer(&**device, &full_group, padded_len, dtype);
            let shard = || alloc_comm_buffer(&**device, replica_group, shard_range.len(), dtype);
            is_local.then(|| GradBlock {
                padded_len,
                full: (!is_sharded).then(full),
                shard: is_sharded.then(shard),
                shard_range: shard_range.clone(),
            })
        };
        let pool_group = if is_sharded { shard_group } else { replica_group };
        Self {
            device: device.clone(),
            dtype,
            blocks: blocks.iter().zip(is_local).map(new_block).collect(),
            pool: BufferPool::for_group(device.clone(), pool_group.clone()),
            partition: partition.clone(),
            reduce_scatters: VecDeque::new(),
            all_reduces: VecDeque::new(),
            wait_time: Duration::ZERO,
        }
    }

    fn is_sharded(&self) -> bool {
        self.partition.stage >= ZeroStage::Two
    }

    /// Zeroes the gradients before a step.
    pub fn zero(&mut self) {
        for block in self.blocks.iter_mut().flatten() {
            let accumulated = block.shard.as_mut().or(block.full.as_mut());
            accumulated.into_iter().for_each(|grads| self.device.zero(grads.view_mut()));
        }
    }

    /// The full gradients of a block, to accumulate in.
    pub fn full(&mut self, block: usize) -> ViewMut<'_> {
        self.alloc_full(block);
        full_of(&mut self.blocks[block])
    }

    /// The full gradients of two blocks, `first` before `second`.
    pub fn full_pair(&mut self, first: usize, second: usize) -> [ViewMut<'_>; 2] {
        self.alloc_full(first);
        self.alloc_full(second);
        let (before, behind) = self.blocks.split_at_mut(second);
        [full_of(&mut before[first]), full_of(&mut behind[0])]
    }

    /// Allocates the full block for a pass, if gradients are sharded; else it is resident.
    fn alloc_full(&mut self, block: usize) {
        if self.is_sharded()
            && let Some(GradBlock { padded_len, full, .. }) = &mut self.blocks[block]
            && full.is_none()
        {
            *full = Some(self.pool.take(*padded_len, self.dtype));
        }
    }

    /// Whether `reduce` with this argument communicates.
    pub fn is_reduced(&self, sync: GradSync) -> bool {
        match sync {
            GradSync::Deferred => false,
            GradSync::Accumulate => self.is_sharded(),
            GradSync::Final => true,
        }
    }

    /// Whether a pass with this argument accumulates into resident blocks and communicates with no rank.
    pub(super) fn is_pass_local(&self, sync: GradSync) -> bool {
        let ZeroPartition { shard_group, replica_group, .. } = &self.partition;
        let is_single = shard_group.is_none() && replica_group.is_none();
        !self.is_sharded() && (is_single || !self.is_reduced(sync))
    }

    /// The addresses of the resident full blocks.
    pub(super) fn addresses(&self) -> impl Iterator<Item = usize> {
        let full = self.blocks.iter().flatten().filter_map(|block| block.full.as_ref());
        full.map(|full| full.view().address().addr().get())
    }

    /// As [`super::BlockStore::reduce_grads`].
    pub(super) fn reduce(&mut self, block: usize, sync: GradSync) -> Result<()> {
        if !self.is_reduced(sync) {
            return Ok(());
        }
        let ZeroPartition { shard_group, replica_group, .. } = &self.partition;
        let Some(comm) = shard_group.as_ref().or(replica_group.as_ref()) else { return Ok(()) };
        match self.blocks[block].as_mut().and_then(|grads| grads.full.take()) {
            Some(full) if shard_group.is_some() => {
                let pending = collective::reduce_scatter(&*self.device, &**comm, full);
                self.reduce_scatters.push_back(ReduceScatter { block, sync, pending });
            }
            Some(full) => {
                let pending = collective::all_reduce(&*self.device, &**comm, full);
                self.all_reduces.push_back(AllReduce { block, full: None, pending });
            }
            None => {}
        }
        // The previous block's reduction overlapped with this block's backward pass. Its result is needed
        // for the replicas, or its buffer for the next block.
        if shard_group.is_some() && (self.is_sharded() || replica_group.is_some()) {
            self.advance(1)?;
        }
        Ok(())
    }

    /// Completes all but the last `in_flight` reductions.
    fn advance(&mut self, in_flight: usize) -> Result<()> {
        while self.reduce_scatters.len() > in_flight
            && let Some(reduce_scatter) = self.reduce_scatters.pop_front()
        {
            self.finish_reduce_scatter(reduce_scatter)?;
        }
        // All-reduces of sharded gradients need no further buffers: they stay in flight until the end.
        while !self.is_sharded()
            && self.all_reduces.len() > in_flight
            && let Some(all_reduce) = self.all_reduces.pop_front()
        {
            self.finish_all_reduce(all_reduce)?;
        }
        Ok(())
    }

    fn finish_reduce_scatter(&mut self, reduce_scatter: ReduceScatter) -> Result<()> {
        let ReduceScatter { block, sync, pending } = reduce_scatter;
        let (mut full, is_sharded) = (self.wait_for(pending)?, self.is_sharded());
        let Some(grads) = &mut self.blocks[block] else { return Ok(()) };
        let reduced = full.view().slice(grads.shard_range.clone());
        // The shard to all-reduce over the replicas, and the full block to copy it back to.
        let (shard, full) = if is_sharded {
            if let Some(shard) = &mut grads.shard {
                self.device.add_assign(reduced, shard.view_mut());
            }
            self.device.zero(full.view_mut());
            self.pool.give(full);
            let is_complete = sync == GradSync::Final && self.partition.replica_group.is_some();
            (grads.shard.take_if(|_| is_complete), None)
        } else if self.partition.replica_group.is_some() {
            let mut shard = self.pool.take(grads.shard_range.len(), self.dtype);
            self.device.copy(reduced, shard.view_mut());
            (Some(shard), Some(full))
        } else {
            grads.full = Some(full);
            (None, None)
        };
        if let (Some(shard), Some(comm)) = (shard, &self.partition.replica_group) {
            let pending = collective::all_reduce(&*self.device, &**comm, shard);
            self.all_reduces.push_back(AllReduce { block, full, pending });
        }
        Ok(())
    }

    fn finish_all_reduce(&mut self, all_reduce: AllReduce) -> Result<()> {
        let AllReduce { block, full, pending } = all_reduce;
        let (reduced, is_sharded) = (self.wait_for(pending)?, self.is_sharded());
        let Some(grads) = &mut self.blocks[block] else { return Ok(()) };
        match full {
            Some(mut full) => {
                self.device.copy(reduced.view(), full.view_mut().slice(grads.shard_range.clone()));
                self.pool.give(reduced);
                grads.full = Some(full);
            }
            None if is_sharded => grads.shard = Some(reduced),
            None => grads.full = Some(reduced),
        }
        Ok(())
    }

    fn wait_for(&mut self, pending: Pending) -> Result<Tensor> {
        let start = run_clock::now();
        let tensor = collective::wait(&*self.device, pending, self.dtype);
        self.wait_time += run_clock::elapsed(start);
        Ok(tensor?)
    }

    /// Waits for all reductions of the step.
    pub fn wait(&mut self) -> Result<()> {
        self.advance(0)?;
        while let Some(all_reduce) = self.all_reduces.pop_front() {
            self.finish_all_reduce(all_reduce)?;
        }
        Ok(())
    }

    /// This rank's shard of the reduced gradients of a block; empty if the rank does not have it.
    pub fn shard(&self, block: usize) -> View<'_> {
        match &self.blocks[block] {
            Some(GradBlock { shard: Some(shard), .. }) => shard.view(),
            Some(GradBlock { full: Some(full), shard_range, .. }) => {
                full.view().slice(shard_range.clone())
            }
            _ => View::from_slice::<f32>(&[]),
        }
    }

    /// Returns the time blocked on other ranks and resets it.
    pub(super) fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.wait_time)
    }

    /// Memory in use between steps.
    pub(super) fn memory(&self) -> StateBytes {
        let accumulated = |block: &GradBlock| {
            let tensor = if self.is_sharded() { &block.shard } else { &block.full };
            tensor.as_ref().map_or(0, byte_len) as u64
        };
        let resident = self.blocks.iter().flatten().map(accumulated).sum();
        StateBytes { resident, transient: self.pool.peak_bytes() as u64 }
    }
}

fn full_of(block: &mut Option<GradBlock>) -> ViewMut<'_> {
    match block.as_mut().and_then(|block| block.full.as_mut()) {
        Some(full) => full.view_mut(),
        None => unreachable!("gradients of a block that is being reduced, or of another rank"),
    }
}
