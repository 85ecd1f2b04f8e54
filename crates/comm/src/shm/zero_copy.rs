//! All-reduce of buffers in the arena: every rank reduces its shard from all inputs directly into
//! all outputs.

use std::sync::Arc;

use super::ShmEngine;
use super::arena::Arena;
use super::buffers::Buffers;
use super::reduce::{BLOCK_BYTES, Reduction};
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
        let done = self.exchange_words(ctx, words, |_| true).and_then(|words_of| {
            let at = |word: u64| word.checked_sub(1).map(|at| at as usize);
            let buffers = |[input, output, _]: &[u64; 3]| {
                Some(ArenaBuffers { input: at(*input)?, output: at(*output)? })
            };
            let buffers_of: Option<Vec<ArenaBuffers>> = words_of.iter().map(buffers).collect();
            match (&arena, buffers_of) {
                (Some(arena), Some(buffers_of)) => {
                    self.reduce_in_arena(ctx, arena, &buffers_of, reduction).map(|()| None)
                }
                _ => Ok(Some(words_of.iter().map(|words| words[2]).collect())),
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
        self.finish_reads(ctx, true)
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
