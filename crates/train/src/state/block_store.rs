//! The training state of a rank, and how passes access parameters: prefetch, unshard, use, reshard.
//!
//! Parameters are *replicated* (ZeRO 0 to 2) or *sharded* (ZeRO 3, or offloaded). Replicated
//! blocks are always in memory; after an update their shards are all-gathered in the background. Of
//! sharded blocks only the local shard is stored, in its memory tier; the full block exists between
//! `unshard` and the last `reshard`.
//!
//! If passes read parameters in another dtype than the master's, blocks are in that dtype, and every rank
//! has the master parameters of its shards besides, in the same tier.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use regatta_comm::{DType, Pending};

use super::grads::{GradStore, GradSync};
use super::init::Initializer;
use super::{ParamInit, Result, ShardingConfig, StepError, ZeroPartition};
use crate::buffer_pool::BufferPool;
use crate::model::Model;
use crate::offload::OffloadedBlocks;
use crate::parallel::{ProcessGroups, ZeroStage, collective};
use crate::run_clock;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_model::rank_bytes::IoBytes;
use regatta_predict::cost::{MemoryBytes, StateBytes};
use regatta_predict::shape::ParamRole;

/// A rank's parameters, gradients and optimizer moments.
pub struct BlockStore {
    /// This rank's shard of each block.
    pub shards: Vec<Range<usize>>,
    /// Ranks that shard a block.
    pub shard_count: usize,
    pub(super) device: Arc<dyn Device>,
    /// Data type of the parameters that passes read.
    weight_dtype: DType,
    partition: ZeroPartition,
    pub(super) blocks: Vec<ParamSlot>,
    /// Whether full blocks exist only while they are in use.
    pub(super) is_sharded: bool,
    /// Master parameters of the local shards; `None` if the full blocks have them.
    pub(super) param_shards: Option<OffloadedBlocks>,
    /// Local shards in the weight dtype, if parameters are sharded and it is not the master's.
    pub(super) weight_shards: Option<OffloadedBlocks>,
    /// Buffers for unsharded blocks.
    pool: BufferPool,
    last_prefetched: usize,
    /// Gradients.
    pub grads: GradStore,
    /// First and second moment of this rank's shards, one behind the other.
    pub(super) moments: OffloadedBlocks,
    wait_time: Duration,
    generated: usize,
}

/// The parameters of a block.
pub(super) struct ParamSlot {
    is_local: bool,
    padded_len: usize,
    /// Calls of `unshard` without `reshard`.
    users: usize,
    full: FullBlock,
    sequence: Sequence,
}

enum FullBlock {
    /// Sharded, or of another rank.
    Absent,
    /// The all-gather is in flight.
    InFlight(Pending),
    Resident(Tensor),
    /// A prefetch failed; `unshard` reports it.
    Failed(StepError),
}

/// Blocks that are used one after the other: embedding, layers and head, or the tiles of one matrix.
#[derive(PartialEq, Eq)]
enum Sequence {
    Layers,
    Tiles { user: usize, matrix: ParamRole },
}

impl ParamSlot {
    /// This rank's shard of a resident block; empty if the block is of another rank.
    pub fn shard(&self, range: &Range<usize>) -> View<'_> {
        match &self.full {
            FullBlock::Resident(full) => full.view().slice(range.clone()),
            _ if !self.is_local => View::from_slice::<f32>(&[]),
            _ => unreachable!("a block is not resident"),
        }
    }

    /// Mutable view of this rank's shard of a resident block.
    pub fn shard_mut(&mut self, range: &Range<usize>) -> ViewMut<'_> {
        match &mut self.full {
            FullBlock::Resident(full) => {
                full.view_mut().split_at(range.end).0.split_at(range.start).1
            }
            _ if !self.is_local => ViewMut::from_slice::<f32>(&mut []),
            _ => unreachable!("a block is not resident"),
        }
    }
}

impl BlockStore {
    /// The state before the first step. Collective over the shard group.
    pub fn new(
        model: &Model,
        device: &Arc<dyn Device>,
        groups: &ProcessGroups,
        config: &ShardingConfig,
        is_local: &[bool],
        init: ParamInit,
    ) -> Result<Self> {
        let offload = config.offload.on_device(&**device);
        let config = ShardingConfig { offload, ..*config };
        let partition = ZeroPartition::new(&config, groups)?;
        let (dtype, weight_dtype) = (device.master_dtype(), device.weight_dtype());
        let has_weight_copy = weight_dtype != dtype;
        let shards: Vec<_> = model.blocks.iter().map(|block| partition.shard(block)).collect();
        let lens = |per_element: usize| -> Vec<Option<usize>> {
            let local = shards.iter().zip(is_local);
            local.map(|(shard, is_local)| is_local.then(|| per_element * shard.len())).collect()
        };
        let rank = groups.world.as_ref().map_or(0, |world| world.rank());
        let offload = &config.offload;
        let offloaded = |tier, name: &str, lens: &[Option<usize>], dtype, pool| {
            let path = offload.dir.join(format!("{name}-{rank}"));
            OffloadedBlocks::new(device, tier, &path, lens, dtype, pool)
        };
        let shard_pool = || BufferPool::for_group(device.clone(), partition.shard_group.clone());
        let is_sharded = offload.parameters.is_offloaded() || partition.stage == ZeroStage::Three;
        let params =
            |name: &str, dtype| offloaded(offload.parameters, name, &lens(1), dtype, shard_pool());
        let has_masters = is_sharded || has_weight_copy;
        let param_shards = has_masters.then(|| params("parameters", dtype)).transpose()?;
        let has_weight_shards = is_sharded && has_weight_copy;
        let weight_shards =
            has_weight_shards.then(|| params("weights", weight_dtype)).transpose()?;
        let pool = BufferPool::new(device.clone());
        let moments = offloaded(offload.optimizer, "moments", &lens(2), dtype, pool)?;
        let gather_pool = BufferPool::for_group(device.clone(), partition.gather_group.clone());
        let new_block = |index: usize| {
            let (block, user) = (&model.blocks[index], model.users[index]);
            let padded_len = partition.padded_len(block);
            let full = match is_local[index] && !is_sharded {
                true => FullBlock::Resident(gather_pool.alloc(padded_len, weight_dtype)),
                false => FullBlock::Absent,
            };
            let sequence = match user == index {
                true => Sequence::Layers,
                false => Sequence::Tiles { user, matrix: block.parameters[0].role },
            };
            ParamSlot { is_local: is_local[index], padded_len, users: 0, full, sequence }
        };
        let mut store = Self {
            blocks: (0..model.blocks.len()).map(new_block).collect(),
            shard_count: partition.ranks(),
            device: device.clone(),
            weight_dtype,
            is_sharded,
            param_shards,
            weight_shards,
            pool: shard_pool(),
            last_prefetched: 0,
            grads: GradStore::new(device, &partition, &model.blocks, is_local),
            moments,
            wait_time: Duration::ZERO,
            generated: 0,
            partition,
            shards,
        };
        if let ParamInit::Random { seed } = init {
            store.init_params(model, seed)?;
        }
        Ok(store)
    }

    /// Generates the initial parameters: local shards, or full blocks if they are replicated.
    fn init_params(&mut self, model: &Model, seed: u64) -> Result<()> {
        let mut initializer = Initializer::new(seed, model.shape.num_layers);
        for index in self.local_blocks() {
            let block = &model.blocks[index];
            match (&mut self.param_shards, &mut self.blocks[index].full) {
                (Some(shards), _) => {
                    shards.load(index)?;
                    let (range, shard) = (self.shards[index].clone(), shards.view_mut(index));
                    initializer.fill(&*self.device, block, range, shard);
                    shards.write_back(index)?;
                    if self.has_weight_copy() {
                        self.all_gather_updated(index)?;
                    }
                }
                (None, FullBlock::Resident(full)) => {
                    initializer.fill(&*self.device, block, 0..full.len(), full.view_mut());
                }
                (None, _) => {}
            }
        }
        self.generated = initializer.generated;
        Ok(())
    }

    /// Random values that this rank generated to initialise its parameters.
    pub fn generated_elements(&self) -> usize {
        self.generated
    }

    /// The blocks that this rank has.
    pub fn local_blocks(&self) -> impl Iterator<Item = usize> + use<> {
        let local = (0..self.blocks.len()).filter(|block| self.blocks[*block].is_local);
        local.collect::<Vec<_>>().into_iter()
    }

    /// Starts to unshard a block that is needed soon.
    pub fn prefetch(&mut self, block: usize) {
        let start = run_clock::now();
        self.start_unshard(block);
        // It may have waited for the disk.
        self.wait_time += run_clock::elapsed(start);
    }

    /// Unshards a block: its full parameters are in memory until `reshard` is called as often.
    pub fn unshard(&mut self, block: usize) -> Result<()> {
        let start = run_clock::now();
        let result = self.finish_unshard(block);
        self.wait_time += run_clock::elapsed(start);
        result
    }

    fn start_unshard(&mut self, block: usize) {
        let ParamSlot { is_local, full, .. } = &self.blocks[block];
        if *is_local
            && let FullBlock::Absent = full
            && let Err(error) = self.start_all_gather(block)
        {
            self.blocks[block].full = FullBlock::Failed(error);
        }
    }

    fn start_all_gather(&mut self, block: usize) -> Result<()> {
        let Some(comm) = self.partition.shard_group.clone() else {
            return Ok(self.pass_shards().map_or(Ok(()), |shards| shards.prefetch(block))?);
        };
        let Some(shards) = self.pass_shards() else { return Ok(()) };
        shards.load(block)?;
        let shard = shards.take(block);
        let full = self.pool.take(self.blocks[block].padded_len, self.weight_dtype);
        let pending = collective::all_gather_into(&*self.device, &*comm, shard, full);
        self.blocks[block].full = FullBlock::InFlight(pending);
        // Reads ahead from its tier in the direction of the pass. Prefetches of a pass have the same order on
        // all ranks, and so have these reads. At the end of a sequence the next block is unknown, and a
        // wrong guess would occupy a buffer until the block is used.
        let next = (2 * block).checked_sub(self.last_prefetched);
        if block.abs_diff(self.last_prefetched) == 1
            && let Some(next) = next.filter(|next| *next < self.blocks.len())
            && self.blocks[next].sequence == self.blocks[block].sequence
            && let Some(shards) = self.pass_shards()
        {
            shards.prefetch(next)?;
        }
        self.last_prefetched = block;
        Ok(())
    }

    fn finish_unshard(&mut self, block: usize) -> Result<()> {
        if !self.blocks[block].is_local {
            return Ok(());
        }
        self.start_unshard(block);
        self.blocks[block].users += 1;
        let full = match std::mem::replace(&mut self.blocks[block].full, FullBlock::Absent) {
            FullBlock::Failed(error) => return Err(error),
            FullBlock::Resident(full) => full,
            FullBlock::InFlight(pending) => {
                let call = collective::finish(&*self.device, pending)?;
                if let Some(shard) = call.input {
                    self.put_shard_back(block, Tensor::from_buffer(shard, self.weight_dtype));
                }
                Tensor::from_buffer(call.output, self.weight_dtype)
            }
            FullBlock::Absent => self.take_shard(block)?,
        };
        self.blocks[block].full = FullBlock::Resident(full);
        Ok(())
    }

    /// Whether passes read the parameters in another dtype than the master's.
    fn has_weight_copy(&self) -> bool {
        self.weight_dtype != self.device.master_dtype()
    }

    /// The local shards that passes read, if parameters are sharded.
    fn pass_shards(&mut self) -> Option<&mut OffloadedBlocks> {
        let shards = self.weight_shards.as_mut().or(self.param_shards.as_mut());
        shards.filter(|_| self.is_sharded)
    }

    /// Takes the local shard of a sharded block in the weight dtype.
    fn take_shard(&mut self, block: usize) -> Result<Tensor> {
        match self.pass_shards() {
            Some(shards) => {
                shards.load(block)?;
                Ok(shards.take(block))
            }
            None => unreachable!("replicated block {block} was lost by a failed all-gather"),
        }
    }

    /// Returns a shard that was taken.
    fn put_shard_back(&mut self, block: usize, shard: Tensor) {
        if let Some(shards) = self.pass_shards() {
            shards.put_back(block, shard);
        }
    }

    /// This rank's part of the weights of a block, to overwrite it, if they are a copy of the master
    /// parameters. The block must not be in flight.
    fn weight_shard_mut(&mut self, block: usize) -> Result<Option<ViewMut<'_>>> {
        if !self.has_weight_copy() || !self.blocks[block].is_local {
            return Ok(None);
        }
        Ok(Some(match &mut self.weight_shards {
            Some(shards) => {
                shards.load_uninit(block)?;
                shards.view_mut(block)
            }
            None => self.blocks[block].shard_mut(&self.shards[block]),
        }))
    }

    /// The full parameters of an unsharded block; empty if this rank does not have it.
    pub fn params(&self, block: usize) -> View<'_> {
        match &self.blocks[block] {
            ParamSlot { full: FullBlock::Resident(full), .. } => full.view(),
            ParamSlot { is_local: false, .. } => View::from_slice::<f32>(&[]),
            _ => unreachable!("block {block} is not unsharded"),
        }
    }

    /// Ends one use of an unsharded block; the last one frees it if parameters are sharded.
    pub fn reshard(&mut self, block: usize) {
        let ParamSlot { users, full, .. } = &mut self.blocks[block];
        *users = users.saturating_sub(1);
        if *users > 0 || !self.is_sharded {
            return;
        }
        if let FullBlock::Resident(tensor) = std::mem::replace(full, FullBlock::Absent) {
            match self.partition.shard_group {
                Some(_) => self.pool.give(tensor),
                None => self.put_shard_back(block, tensor),
            }
        }
    }

    /// Starts to reduce the gradients of a block to which a pass added its contribution.
    pub fn reduce_grads(&mut self, block: usize, sync: GradSync) -> Result<()> {
        self.grads.reduce(block, sync)
    }

    /// Cancels a prefetch, because the shard is about to change.
    pub(super) fn cancel(&mut self, block: usize) -> Result<()> {
        if let FullBlock::InFlight(_) | FullBlock::Failed(_) = self.blocks[block].full {
            self.finish_unshard(block)?;
            self.reshard(block);
        }
        Ok(())
    }

    /// Makes passes see the master parameters of a block that all ranks have changed outside of an
    /// optimizer step.
    pub fn all_gather_updated(&mut self, block: usize) -> Result<()> {
        if self.has_weight_copy() && self.blocks[block].is_local {
            self.load_param_shard(block)?;
            let masters = self.param_shards.take();
            let device = self.device.clone();
            let copied = self.weight_shard_mut(block).map(|weights| {
                if let (Some(masters), Some(weights)) = (&masters, weights) {
                    device.copy(masters.view(block), weights);
                }
            });
            self.param_shards = masters;
            copied?;
        }
        self.publish_shard(block)
    }

    /// Starts to all-gather a block whose shards all ranks have updated, if parameters are replicated;
    /// stores the shards in their tier.
    pub(super) fn publish_shard(&mut self, block: usize) -> Result<()> {
        for shards in self.param_shards.iter_mut().chain(&mut self.weight_shards) {
            shards.write_back(block)?;
        }
        let (Some(comm), full) = (&self.partition.gather_group, &mut self.blocks[block].full)
        else {
            return Ok(());
        };
        if self.is_sharded {
            return Ok(());
        }
        *full = match std::mem::replace(full, FullBlock::Absent) {
            FullBlock::Resident(tensor) => {
                FullBlock::InFlight(collective::all_gather(&*self.device, &**comm, tensor))
            }
            other => other,
        };
        Ok(())
    }

    /// Waits for all-gathers of updated parameters.
    pub fn wait(&mut self) -> Result<()> {
        if self.is_sharded {
            return Ok(());
        }
        self.local_blocks().try_for_each(|block| self.finish_unshard(block))
    }

    /// Whether a pass with this argument uses resident parameters and gradients only: it neither
    /// communicates nor waits.
    pub fn is_pass_local(&self, sync: GradSync) -> bool {
        let is_ready =
            |block: &ParamSlot| !block.is_local || matches!(block.full, FullBlock::Resident(_));
        !self.is_sharded && self.blocks.iter().all(is_ready) && self.grads.is_pass_local(sync)
    }

    /// The addresses of resident parameters and gradients.
    pub fn addresses(&self) -> Vec<usize> {
        let resident = |block: &ParamSlot| match &block.full {
            FullBlock::Resident(full) => Some(full.view().address().addr().get()),
            _ => None,
        };
        self.blocks.iter().filter_map(resident).chain(self.grads.addresses()).collect()
    }

    /// Whether an optimizer step of this rank uses resident tensors only: it neither communicates nor copies
    /// between memory tiers.
    pub fn is_update_local(&self) -> bool {
        let mut shards = self.param_shards.iter().chain(&self.weight_shards).chain([&self.moments]);
        self.is_pass_local(GradSync::Deferred)
            && self.partition.gather_group.is_none()
            && shards.all(OffloadedBlocks::is_resident)
    }

    /// The addresses of all tensors of such a step.
    pub fn update_addresses(&self) -> Vec<usize> {
        let shards = self.param_shards.iter().chain(&self.weight_shards).chain([&self.moments]);
        self.addresses().into_iter().chain(shards.flat_map(OffloadedBlocks::addresses)).collect()
    }

    /// The parameters of all blocks, if this rank has all of them in memory.
    pub fn all_params(&self) -> Option<Vec<View<'_>>> {
        let resident = |block: usize| match &self.blocks[block].full {
            FullBlock::Resident(full) if !self.is_sharded => Some(full.view()),
            _ => None,
        };
        (0..self.blocks.len()).map(resident).collect()
    }

    /// The full parameters of an unsharded block, and its gradients.
    pub fn params_and_grads(&mut self, block: usize) -> (View<'_>, ViewMut<'_>) {
        let params = match &self.blocks[block].full {
            FullBlock::Resident(full) => full.view(),
            _ => unreachable!("block {block} is not unsharded"),
        };
        (params, self.grads.full(block))
    }

    /// Returns the time that passes were blocked on other ranks or the disk, and resets it.
    pub fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.wait_time) + self.grads.take_wait_time()
    }

    /// Memory of the state on this rank.
    pub fn memory(&self) -> MemoryBytes {
        let local = self.blocks.iter().filter(|block| block.is_local);
        let full = local.map(|block| block.padded_len).sum::<usize>() * self.weight_dtype.size();
        let shards = self.param_shards.iter().chain(&self.weight_shards);
        let mut params = StateBytes {
            resident: if self.is_sharded { 0 } else { full as u64 },
            transient: self.pool.peak_bytes() as u64,
        };
        for StateBytes { resident, transient } in shards.clone().map(OffloadedBlocks::memory) {
            params.resident += resident;
            params.transient += transient;
        }
        let pinned: usize = shards.chain([&self.moments]).map(OffloadedBlocks::pinned_bytes).sum();
        let (grads, optimizer) = (self.grads.memory(), self.moments.memory());
        MemoryBytes { params, grads, optimizer, pinned: pinned as u64, ..MemoryBytes::default() }
    }

    /// Bytes read from and written to swap files so far.
    pub fn io_bytes(&self) -> IoBytes {
        let shards = self.param_shards.iter().chain(&self.weight_shards).chain([&self.moments]);
        shards.fold(IoBytes::default(), |sum, blocks| sum + blocks.io_bytes())
    }
}
