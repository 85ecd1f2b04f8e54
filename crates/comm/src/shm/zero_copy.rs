//! All-reduce of buffers in the arena: every rank reduces its shard from all inputs directly into
//! all outputs.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::ShmEngine;
use super::arena::Arena;
use super::buffers::Buffers;
use super::reduce::{BLOCK_BYTES, Reduction, SlotKind};
use super::round_plan::ReduceShards;
use super::wait::CallCtx;
use crate::reduce_kernel::{reduce_many, stream};
use crate::{CommError, Result};

/// Arena offsets of a rank's buffers.
#[derive(Debug, Clone, Copy)]
struct ArenaBuffers {
    input: usize,
    output: usize,
}

impl ShmEngine {
    /// Reduces in place if all ranks' buffers are in the arena; whether they are.
    pub(super) fn reduce_zero_copy(
        &mut self,
        ctx: &CallCtx,
        reduction: Reduction,
        buffers: &Buffers,
    ) -> Result<bool> {
        let Some(arena) = self.shared.arena.clone() else { return Ok(false) };
        let own = buffers.in_arena(&arena, reduction.bytes);
        let done = match self.exchange_offsets(ctx, own) {
            Ok(Some(buffers_of)) => {
                self.reduce_in_arena(ctx, &arena, &buffers_of, reduction).map(|()| true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        // Ranks that have not seen the failure yet may still write to the output.
        if let (Err(_), Some((_, output))) = (&done, own) {
            arena.detach(output, reduction.bytes);
        }
        done
    }

    /// Exchanges the buffer offsets; `None` if a rank's buffers are not in the arena.
    fn exchange_offsets(
        &mut self,
        ctx: &CallCtx,
        own: Option<(usize, usize)>,
    ) -> Result<Option<Vec<ArenaBuffers>>> {
        let word = |at: Option<usize>| at.map_or(0, |at| at as u64 + 1).to_le_bytes();
        let offsets = [word(own.map(|own| own.0)), word(own.map(|own| own.1))].concat();
        let seq = self.next_post(SlotKind::Inline, ctx)?;
        self.write_payload(SlotKind::Inline, seq, 0..offsets.len(), &offsets);
        self.post(seq, ctx);
        self.others().try_for_each(|other| self.shared.await_post(other, seq, ctx))?;
        let buffers = |rank: usize| {
            let offsets = self.payload(SlotKind::Inline, rank, seq, 0..offsets.len());
            let (words, _) = offsets.as_chunks::<8>();
            let at = |word: &[u8; 8]| u64::from_le_bytes(*word).checked_sub(1);
            Some(ArenaBuffers { input: at(&words[0])? as usize, output: at(&words[1])? as usize })
        };
        Ok((0..self.ranks()).map(buffers).collect())
    }

    fn reduce_in_arena(
        &mut self,
        ctx: &CallCtx,
        arena: &Arc<Arena>,
        buffers_of: &[ArenaBuffers],
        reduction: Reduction,
    ) -> Result {
        let Some(addresses) = self.addresses(arena, buffers_of, reduction.bytes) else {
            let why = "a published buffer is outside the arena".to_owned();
            let by = self.shared.peers[self.rank()].clone();
            return Err(self.shared.publish_error(CommError::Aborted { by, why }));
        };
        let shards = ReduceShards::new(reduction.bytes, reduction.bytes, self.ranks());
        let shard = shards.shard(0, self.rank());
        let mut block_result = [0; BLOCK_BYTES];
        let mut at = shard.offset;
        while at < shard.in_buffer().end {
            let bytes = BLOCK_BYTES.min(shard.in_buffer().end - at);
            // SAFETY: all ranks have published these buffers, and only this rank accesses this
            // shard until it posts.
            let input = |rank: usize| unsafe {
                std::slice::from_raw_parts(addresses[rank].0.add(at).cast_const(), bytes)
            };
            let result = &mut block_result[..bytes];
            reduce_many(reduction.dtype, reduction.op, result, self.ranks(), input);
            for (input, output) in &addresses {
                // SAFETY: as above.
                let out = unsafe { std::slice::from_raw_parts_mut(output.add(at), bytes) };
                match input == output {
                    true => out.copy_from_slice(result),
                    false => stream::copy(out, result),
                }
            }
            at += bytes;
        }
        stream::sfence();
        // A rank that has seen a failure owns its input again and may already have changed it.
        fence(Ordering::Acquire);
        self.shared.check_ranks(ctx)?;
        let seq = self.next_post(SlotKind::Inline, ctx)?;
        self.post(seq, ctx);
        self.others().try_for_each(|other| self.shared.await_post(other, seq, ctx))
    }

    /// The addresses of all ranks' inputs and outputs.
    fn addresses(
        &self,
        arena: &Arc<Arena>,
        buffers_of: &[ArenaBuffers],
        bytes: usize,
    ) -> Option<Vec<(*mut u8, *mut u8)>> {
        let of = |(rank, buffers): (usize, &ArenaBuffers)| {
            Some((arena.at(rank, buffers.input, bytes)?, arena.at(rank, buffers.output, bytes)?))
        };
        buffers_of.iter().enumerate().map(of).collect()
    }
}
