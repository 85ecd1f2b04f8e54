//! All-reduce of buffers in the arena: every rank reduces its shard from all inputs directly into
//! all outputs.

use std::sync::Arc;

use super::ShmEngine;
use super::arena::Arena;
use super::buffers::Buffers;
use super::reduce::{BLOCK_BYTES, Reduction};
use super::round_plan::{ReduceShards, SlotChunk};
use super::wait::CallCtx;
use crate::Result;
use crate::reduce_kernel::{reduce_many, stream};

/// The addresses of a rank's input and output.
type Addresses = (*mut u8, *mut u8);

impl ShmEngine {
    /// All-reduces in the arena, if all ranks' buffers are there. Otherwise returns the addresses of
    /// all inputs, in which this rank's is `address`.
    pub(super) fn reduce_zero_copy(
        &mut self,
        ctx: &CallCtx,
        reduction: Reduction,
        buffers: &Buffers,
        address: u64,
    ) -> Result<Option<Vec<u64>>> {
        let arena = self.shared.arena.clone();
        let in_arena = |arena: &Arc<Arena>| buffers.in_arena(arena, reduction.bytes);
        let own = arena.as_ref().filter(|_| reduction.root.is_none()).and_then(in_arena);
        let word = |at: Option<usize>| at.map_or(0, |at| at as u64 + 1);
        let words = [word(own.map(|own| own.0)), word(own.map(|own| own.1)), address];
        let done = self.exchange_words(ctx, &words, |_| true).and_then(|words_of| {
            // All ranks find the same words, and therefore decide in the same way.
            let (words_of, _) = words_of.as_chunks::<3>();
            let addresses = |(rank, [input, output, _]): (usize, &[u64; 3])| {
                let at = |word: &u64| {
                    let at = word.checked_sub(1)? as usize;
                    arena.as_ref()?.at(rank, at, reduction.bytes)
                };
                Some((at(input)?, at(output)?))
            };
            match words_of.iter().enumerate().map(addresses).collect::<Option<Vec<Addresses>>>() {
                Some(addresses) => self.reduce_in_arena(ctx, &addresses, reduction).map(|()| None),
                None => Ok(Some(words_of.iter().map(|words| words[2]).collect())),
            }
        });
        // Ranks that have not seen the failure yet may still write to the output.
        if let (Err(_), Some(arena), Some((_, output))) = (&done, &arena, own) {
            arena.detach(output, reduction.bytes);
        }
        done
    }

    fn reduce_in_arena(
        &mut self,
        ctx: &CallCtx,
        addresses: &[Addresses],
        reduction: Reduction,
    ) -> Result {
        let shards = ReduceShards::new(reduction.bytes, reduction.bytes, self.ranks());
        let shard = shards.shard(0, self.rank());
        let mut block_result = [0; BLOCK_BYTES];
        for SlotChunk { offset: at, bytes, .. } in shard.blocks(BLOCK_BYTES) {
            // SAFETY: all ranks have published these buffers, and only this rank accesses this
            // shard until it posts.
            let input = |rank: usize| unsafe {
                std::slice::from_raw_parts(addresses[rank].0.add(at).cast_const(), bytes)
            };
            let result = &mut block_result[..bytes];
            reduce_many(reduction.dtype, reduction.op, result, self.ranks(), input);
            for (input, output) in addresses {
                // SAFETY: as above.
                let out = unsafe { std::slice::from_raw_parts_mut(output.add(at), bytes) };
                match input == output {
                    true => out.copy_from_slice(result),
                    false => stream::copy(out, result),
                }
            }
        }
        stream::sfence();
        self.finish_reads(ctx, true)
    }
}
