//! Single-copy collectives: ranks read the inputs of others from the memory of their processes
//! (`cross_memory.rs`), instead of one copy into a slot and one out of it.
//!
//! The ranks exchange the addresses of their inputs, read, and post again. A rank that others read
//! from returns after their last post.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::ShmEngine;
use super::buffers::Buffers;
use super::cross_memory;
use super::layout::LINE_BYTES;
use super::payload::SlotKind;
use super::round_plan::RoundPlan;
use super::wait::CallCtx;
use crate::Result;

/// Bytes of all ranks' inputs that are fetched at a time: they stay in the L2 cache.
const FETCHED_BYTES: usize = 512 << 10;
/// A rank's block, which a system call fetches, is a multiple of this.
const BLOCK_UNIT: usize = 16 << 10;

/// The inputs of a reduction in the memory of their processes, fetched in blocks.
#[derive(Debug)]
pub struct RemoteInputs {
    addresses: Vec<u64>,
    /// A block of every rank.
    blocks: Vec<u8>,
    /// Offset of the blocks in the inputs.
    offset: usize,
    pub block_bytes: usize,
}

impl RemoteInputs {
    fn new(addresses: Vec<u64>, mut blocks: Vec<u8>) -> Self {
        let ranks = addresses.len();
        let block_bytes = (FETCHED_BYTES / ranks / BLOCK_UNIT).max(1) * BLOCK_UNIT;
        if blocks.is_empty() {
            // Pages are allocated when they are used.
            blocks = vec![0; ranks * block_bytes];
        }
        Self { addresses, blocks, offset: 0, block_bytes }
    }

    /// Bytes of a rank's input, which were fetched.
    pub fn get(&self, rank: usize, range: Range<usize>) -> &[u8] {
        let start = rank * self.block_bytes + (range.start - self.offset);
        &self.blocks[start..start + range.len()]
    }
}

impl ShmEngine {
    /// The inputs at these addresses.
    pub(super) fn remote_inputs(&mut self, addresses: Vec<u64>) -> RemoteInputs {
        RemoteInputs::new(addresses, std::mem::take(&mut self.fetched))
    }

    /// The address at which the others read this rank's input; 0 if they cannot.
    pub(super) fn address_of(&self, buffers: &Buffers) -> u64 {
        let (input, bytes) = buffers.whole_input();
        let readable = !buffers.overwrites_unsent && cross_memory::is_readable(input, bytes);
        if readable { input.addr() as u64 } else { 0 }
    }

    /// Exchanges the addresses of the inputs of a plan. If a rank that sends has none, all ranks get
    /// `None`.
    pub(super) fn exchange_addresses(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        buffers: &Buffers,
    ) -> Result<Option<Vec<u64>>> {
        let own = if plan.is_sender(self.rank()) { self.address_of(buffers) } else { 0 };
        let addresses = self.exchange_words(ctx, &[own], |rank| plan.is_sender(rank))?;
        let has_all = (0..self.ranks()).all(|rank| addresses[rank] != 0 || !plan.is_sender(rank));
        Ok(has_all.then_some(addresses))
    }

    /// Posts words, of which all ranks have as many, and returns those of some ranks: words of a
    /// rank that is not read are 0.
    pub(super) fn exchange_words(
        &mut self,
        ctx: &CallCtx,
        own: &[u64],
        from: impl Fn(usize) -> bool,
    ) -> Result<Vec<u64>> {
        let (count, bytes) = (own.len(), size_of_val(own));
        let slot = SlotKind::of(bytes);
        let seq = self.next_post(slot, ctx)?;
        let (posted, _) = self.payload_mut(slot, seq, 0..bytes).as_chunks_mut::<8>();
        posted.iter_mut().zip(own).for_each(|(to, word)| *to = word.to_le_bytes());
        self.post(seq, slot, ctx);
        let mut words_of = vec![0; count * self.ranks()];
        words_of[self.rank() * count..][..count].copy_from_slice(own);
        for other in self.others().filter(|other| from(*other)) {
            self.shared.await_post(other, seq, ctx)?;
            let (words, _) = self.payload(slot, other, seq, 0..bytes).as_chunks::<8>();
            let into = words_of[other * count..].iter_mut();
            into.zip(words).for_each(|(to, word)| *to = u64::from_le_bytes(*word));
        }
        Ok(words_of)
    }

    /// Runs a collective that copies, by reading from these addresses.
    pub(super) fn run_single_copies(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        buffers: &Buffers,
        addresses: &[u64],
    ) -> Result {
        let slot_seq = match self.policy.splits_blocks(ctx.signature.kind, plan.bytes) {
            true => Some(self.post_first_parts(ctx, plan, buffers)?),
            false => None,
        };
        if let Some((own, block)) = plan.own_block() {
            buffers.copy_block(own, block.in_buffer());
        }
        for other in self.others_from_next() {
            let Some(block) = plan.recv_block(other) else { continue };
            let in_slot = slot_seq.map_or(0, |_| self.first_part(block.bytes));
            let rest = block.part(in_slot..block.bytes);
            // SAFETY: received blocks are written where no unsent input is left.
            let out = unsafe { buffers.output(rest.in_buffer()) };
            let address = addresses[other] + (plan.remote_offset + in_slot) as u64;
            self.read_memory(other, address, out, ctx)?;
            if let Some(seq) = slot_seq {
                self.shared.await_post(other, seq, ctx)?;
                let start = self.rank() * self.first_part_slot();
                let part = self.payload(SlotKind::Slot, other, seq, start..start + in_slot);
                // SAFETY: as above.
                unsafe { buffers.write(block.part(0..in_slot).in_buffer(), part) };
            }
        }
        self.finish_reads(ctx, plan.is_sender(self.rank()))
    }

    /// Copies the first part of each block to this rank's slot, while the others read the rest from
    /// its memory: that shares the work between sender and receivers.
    fn post_first_parts(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        buffers: &Buffers,
    ) -> Result<u64> {
        let seq = self.next_post(SlotKind::Slot, ctx)?;
        for other in self.others() {
            let Some(block) = plan.send_block(other) else { continue };
            let part = block.part(0..self.first_part(block.bytes));
            let start = other * self.first_part_slot();
            // SAFETY: the input is not written concurrently.
            let input = unsafe { buffers.input(part.in_buffer()) };
            self.write_payload(SlotKind::Slot, seq, start..start + part.bytes, input);
        }
        self.post(seq, SlotKind::Slot, ctx);
        Ok(seq)
    }

    /// Bytes of a block that go through the slot.
    fn first_part(&self, block_bytes: usize) -> usize {
        (block_bytes / 2).min(self.first_part_slot())
    }

    /// Bytes of the slot for the first part of a block.
    fn first_part_slot(&self) -> usize {
        (self.shared.region.layout.slot_bytes() / self.ranks()) & !(LINE_BYTES - 1)
    }

    /// Fetches a block of all other ranks' inputs.
    pub(super) fn fetch(
        &self,
        inputs: &mut RemoteInputs,
        range: Range<usize>,
        ctx: &CallCtx,
    ) -> Result {
        inputs.offset = range.start;
        for other in self.others_from_next() {
            let start = other * inputs.block_bytes;
            let block = &mut inputs.blocks[start..start + range.len()];
            self.read_memory(other, inputs.addresses[other] + range.start as u64, block, ctx)?;
        }
        Ok(())
    }

    /// The other ranks, starting after this one, so that not all ranks read from the same one.
    fn others_from_next(&self) -> impl Iterator<Item = usize> + use<> {
        let (next, ranks) = (self.rank() + 1, self.ranks());
        (next..next + ranks - 1).map(move |rank| rank % ranks)
    }

    /// Keeps the memory of fetched blocks for the next call.
    pub(super) fn recycle(&mut self, inputs: RemoteInputs) {
        self.fetched = inputs.blocks;
    }

    fn read_memory(&self, rank: usize, address: u64, out: &mut [u8], ctx: &CallCtx) -> Result {
        let process = self.shared.region.process(rank);
        let read = cross_memory::read(process, address, out);
        read.map_err(|why| self.shared.read_error(rank, &why, ctx))
    }

    /// Posts that this rank has read all inputs; a rank that others read from waits for them.
    pub(super) fn finish_reads(&mut self, ctx: &CallCtx, is_sender: bool) -> Result {
        self.check_inputs(ctx)?;
        let seq = self.next_post(SlotKind::Inline, ctx)?;
        self.post(seq, SlotKind::Inline, ctx);
        let mut awaited = self.others().filter(|_| is_sender);
        awaited.try_for_each(|other| self.shared.await_post(other, seq, ctx))
    }

    /// Fails if a rank has: it owns its input again and may already have changed it.
    pub(super) fn check_inputs(&self, ctx: &CallCtx) -> Result {
        fence(Ordering::Acquire);
        self.shared.check_ranks(ctx)
    }
}
