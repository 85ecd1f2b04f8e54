//! All-reduce, reduce and reduce-scatter, in rank order, so that results are bit-identical and
//! reproducible. Small buffers are reduced by every rank (`single_post.rs`), large ones in shards.

use super::ShmEngine;
use super::buffers::Buffers;
use super::payload::SlotKind;
use super::round_plan::{ReduceShards, RoundPlan, SlotChunk};
use super::single_copy::RemoteInputs;
use super::wait::CallCtx;
use crate::reduce_kernel::reduce_many;
use crate::{Call, CallKind, DType, ReduceOp, Result};

/// Block size that stays in the L1 cache between reduction and copies.
pub const BLOCK_BYTES: usize = 8 << 10;

/// Maximum shard of a reduction whose inputs are not in slots: the results in slots stay in the L2
/// cache.
const SINGLE_COPY_SHARD_BYTES: usize = 256 << 10;

/// Parameters of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    /// The only rank that gets the result, if not all do.
    pub root: Option<usize>,
    pub bytes: usize,
}

impl Reduction {
    fn is_wanted_by(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }
}

impl ShmEngine {
    /// Runs an all-reduce or reduce in shards.
    pub(super) fn reduce(&mut self, ctx: &CallCtx, call: Call<'_>) -> Result {
        let kind = call.kind;
        let reduction = Reduction {
            dtype: call.dtype,
            op: call.op,
            root: (kind == CallKind::Reduce).then_some(call.root as usize),
            bytes: call.counts.of(self.rank()) * call.dtype.size(),
        };
        let buffers = Buffers::new(call, self.rank());
        let single_copy = self.policy.uses_single_copy(kind, reduction.bytes);
        let mut addresses = vec![0; self.ranks()];
        if single_copy || self.policy.uses_zero_copy(kind, reduction.bytes) {
            let address = if single_copy { self.address_of(&buffers) } else { 0 };
            let exchanged = self.reduce_zero_copy(ctx, reduction, &buffers, address)?;
            let Some(exchanged) = exchanged else { return Ok(()) };
            addresses = exchanged;
        }
        if addresses.contains(&0) {
            return self.reduce_sharded(ctx, reduction, &buffers);
        }
        let inputs = self.remote_inputs(addresses);
        self.reduce_sharded_single_copy(ctx, reduction, &buffers, inputs)
    }

    /// Pipelines chunks: in one round a rank posts its inputs of one chunk, reduces its shard of
    /// the previous chunk and reads the other shards of the chunk before. It only waits for posts
    /// of the previous round.
    fn reduce_sharded(&mut self, ctx: &CallCtx, reduction: Reduction, buffers: &Buffers) -> Result {
        let chunk = self.shared.region.layout.chunk_bytes;
        let shards = ReduceShards::new(reduction.bytes, chunk, self.ranks());
        let wants_result = reduction.is_wanted_by(self.rank());
        let last = if wants_result { shards.rounds + 1 } else { shards.rounds };
        for round in 0..=last {
            let seq = self.next;
            if round <= shards.rounds {
                self.next_post(SlotKind::Slot, ctx)?;
            }
            if round < shards.rounds {
                self.write_inputs(seq, &shards, round, buffers);
            }
            if round > 0 {
                self.others().try_for_each(|r| self.shared.await_post(r, seq - 1, ctx))?;
            }
            if (1..=shards.rounds).contains(&round) {
                let input = |rank, block: &SlotChunk| {
                    self.payload(SlotKind::Slot, rank, seq - 1, block.in_slot())
                };
                let shard = shards.shard(round - 1, self.rank());
                self.reduce_part(seq, reduction, (&shards, shard), buffers, &input);
            }
            if round <= shards.rounds {
                self.post(seq, SlotKind::Slot, ctx);
            }
            if round > 1 && wants_result {
                self.read_results(seq - 1, &shards, round - 2, buffers);
            }
        }
        Ok(())
    }

    /// Like [`Self::reduce_sharded`], with inputs that are read from the memory of the other ranks;
    /// results go through slots.
    fn reduce_sharded_single_copy(
        &mut self,
        ctx: &CallCtx,
        reduction: Reduction,
        buffers: &Buffers,
        mut inputs: RemoteInputs,
    ) -> Result {
        let shard_bytes = self.shared.region.layout.chunk_bytes.min(SINGLE_COPY_SHARD_BYTES);
        let (bytes, chunk) = (reduction.bytes, shard_bytes * self.ranks());
        let shards = ReduceShards::new(bytes, chunk, self.ranks()).without_inputs();
        for round in 0..=shards.rounds {
            let seq = self.next;
            if round < shards.rounds {
                self.next_post(SlotKind::Slot, ctx)?;
                let shard = shards.shard(round, self.rank());
                for part in shard.blocks(inputs.block_bytes) {
                    self.fetch(&mut inputs, part.in_buffer(), ctx)?;
                    let input = |rank, block: &SlotChunk| inputs.get(rank, block.in_buffer());
                    self.reduce_part(seq, reduction, (&shards, part), buffers, &input);
                }
                self.post(seq, SlotKind::Slot, ctx);
            }
            let Some(before) = round.checked_sub(1) else { continue };
            self.others().try_for_each(|r| self.shared.await_post(r, seq - 1, ctx))?;
            if reduction.is_wanted_by(self.rank()) {
                self.read_results(seq - 1, &shards, before, buffers);
            }
        }
        self.recycle(inputs);
        self.check_inputs(ctx)
    }

    /// Reduce-scatter, posting one round ahead of what is read.
    pub(super) fn reduce_scatter(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        (dtype, op): (DType, ReduceOp),
        buffers: &Buffers,
    ) -> Result {
        let first = self.next;
        for round in 0..=plan.rounds {
            if round < plan.rounds {
                self.post_round(ctx, plan, round, buffers)?;
            }
            let Some(before) = round.checked_sub(1) else { continue };
            let Some((own, chunk)) = plan.own_copy(before) else { continue };
            let seq = first + before as u64;
            self.others().try_for_each(|other| self.shared.await_post(other, seq, ctx))?;
            let received = self.others().find_map(|other| plan.recv(before, other));
            let slot_offset = received.map_or(0, |chunk| chunk.slot_offset);
            let input =
                |rank, block: &SlotChunk| self.payload(SlotKind::Slot, rank, seq, block.in_slot());
            let received = SlotChunk { slot_offset, ..chunk };
            self.reduce_block((dtype, op), own, received, buffers, &input);
        }
        Ok(())
    }

    /// [`Self::reduce_scatter`] with inputs that are read from the memory of the other ranks.
    pub(super) fn reduce_scatter_single_copy(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        of: (DType, ReduceOp),
        buffers: &Buffers,
        mut inputs: RemoteInputs,
    ) -> Result {
        if let Some((own, chunk)) = plan.own_block() {
            for part in chunk.blocks(inputs.block_bytes) {
                let start = own + part.offset - chunk.offset;
                self.fetch(&mut inputs, start..start + part.bytes, ctx)?;
                let input = |rank, block: &SlotChunk| {
                    let start = start + block.offset - part.offset;
                    inputs.get(rank, start..start + block.bytes)
                };
                self.reduce_block(of, start, part, buffers, &input);
            }
        }
        self.recycle(inputs);
        self.finish_reads(ctx, true)
    }

    /// Reduces a block into the output. The own input starts at `own`; `input` returns the others'.
    fn reduce_block<'a>(
        &self,
        (dtype, op): (DType, ReduceOp),
        own: usize,
        chunk: SlotChunk,
        buffers: &'a Buffers,
        input: &dyn Fn(usize, &SlotChunk) -> &'a [u8],
    ) {
        // In place, the own input is the output.
        let is_aliased = buffers.is_aliased(own, chunk.offset);
        let mut scratch = [0; BLOCK_BYTES];
        for block in chunk.blocks(BLOCK_BYTES) {
            let start = own + block.offset - chunk.offset;
            let input = |rank: usize| match rank == self.rank() {
                // SAFETY: it is not written before it is read.
                true => unsafe { buffers.input(start..start + block.bytes) },
                false => input(rank, &block),
            };
            if is_aliased {
                let result = &mut scratch[..block.bytes];
                reduce_many(dtype, op, result, self.ranks(), input);
                // SAFETY: the input has been read.
                unsafe { buffers.write(block.in_buffer(), result) };
            } else {
                // SAFETY: input and output are disjoint.
                let out = unsafe { buffers.output(block.in_buffer()) };
                reduce_many(dtype, op, out, self.ranks(), input);
            }
        }
    }

    /// Writes the other ranks' shards of the input to the slot.
    fn write_inputs(&self, seq: u64, shards: &ReduceShards, round: usize, buffers: &Buffers) {
        for other in self.others() {
            let shard = shards.shard(round, other);
            // SAFETY: no output of this chunk has been written yet.
            let input = unsafe { buffers.input(shard.in_buffer()) };
            self.write_payload(SlotKind::Slot, seq, shard.in_slot(), input);
        }
    }

    /// Reduces a part of this rank's shard into the output and the slot; `input` returns the inputs
    /// of other ranks.
    fn reduce_part<'a>(
        &self,
        seq: u64,
        reduction: Reduction,
        (shards, part): (&ReduceShards, SlotChunk),
        buffers: &'a Buffers,
        input: &dyn Fn(usize, &SlotChunk) -> &'a [u8],
    ) {
        let Reduction { dtype, op, root, .. } = reduction;
        let mut scratch = [0; BLOCK_BYTES];
        for block in part.blocks(BLOCK_BYTES) {
            let input = |rank: usize| match rank == self.rank() {
                // SAFETY: it is only written below, after it was read.
                true => unsafe { buffers.input(block.in_buffer()) },
                false => input(rank, &block),
            };
            let result = &mut scratch[..block.bytes];
            reduce_many(dtype, op, result, self.ranks(), input);
            if root != Some(self.rank()) {
                let to = self.payload_mut(SlotKind::Slot, seq, shards.result(&block));
                self.store(part.bytes, to, result);
            }
            if reduction.is_wanted_by(self.rank()) {
                // SAFETY: the input has been read.
                unsafe { buffers.write(block.in_buffer(), result) };
            }
        }
    }

    /// Reads the other ranks' reduced shards into the output.
    fn read_results(&self, seq: u64, shards: &ReduceShards, round: usize, buffers: &Buffers) {
        for other in self.others() {
            let shard = shards.shard(round, other);
            let from = self.payload(SlotKind::Slot, other, seq, shards.result(&shard));
            // SAFETY: the inputs of this chunk have been read.
            unsafe { buffers.write(shard.in_buffer(), from) };
        }
    }
}
