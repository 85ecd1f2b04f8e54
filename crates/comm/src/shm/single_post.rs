//! Small collectives, in one post per rank: every rank posts its contribution and reads what it needs
//! from the posts of the others.

use super::ShmEngine;
use super::payload::SlotKind;
use super::wait::CallCtx;
use crate::CallKind::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::reduce_kernel::reduce_many;
use crate::{Call, Counts, Result, prefetch};

/// Bytes of the longest contribution of a rank; `None` if this rank cannot derive it.
pub fn longest_contribution(call: &Call, ranks: usize) -> Option<usize> {
    let count = match (&call.counts, call.kind) {
        (Counts::PerPair { .. }, _) => return None,
        (_, Barrier) => 0,
        (counts, Scatter | ReduceScatter | AllToAll) => counts.total(ranks),
        (Counts::Equal(count), _) => *count,
        (Counts::PerRank(counts), _) => counts.iter().copied().max().unwrap_or(0),
    };
    Some(count * call.dtype.size())
}

impl ShmEngine {
    /// Runs a call whose longest contribution has `bytes` bytes.
    pub(super) fn run_single_post(
        &mut self,
        ctx: &CallCtx,
        call: &mut Call<'_>,
        bytes: usize,
    ) -> Result {
        let slot = SlotKind::of(bytes);
        let seq = self.next_post(slot, ctx)?;
        self.write_contribution(call, slot, seq);
        self.post(seq, slot, ctx);
        self.read_posts(ctx, call, slot, seq)
    }

    #[inline]
    fn write_contribution(&self, call: &Call, slot: SlotKind, seq: u64) {
        let contribution = call.contribution(self.rank());
        match call.kind {
            // No other rank reads the own block, which is omitted.
            Scatter | AllToAll if !contribution.is_empty() => {
                let own = call.own_block(self.rank());
                let (before, after) = (&contribution[..own.start], &contribution[own.end..]);
                self.write_payload(slot, seq, 0..own.start, before);
                self.write_payload(slot, seq, own.start..own.start + after.len(), after);
            }
            _ => self.write_payload(slot, seq, 0..contribution.len(), contribution),
        }
    }

    /// Reads what this rank needs from the posts of the others.
    #[inline]
    fn read_posts(&self, ctx: &CallCtx, call: &mut Call<'_>, slot: SlotKind, seq: u64) -> Result {
        let (rank, ranks, root) = (self.rank(), self.ranks(), call.root as usize);
        let (own, size) = (call.own_block(rank), call.dtype.size());
        let result = call.result_range(rank);
        let (counts, result) = (&call.counts, &mut call.output[result]);
        let (kind, dtype, op, input) = (call.kind, call.dtype, call.op, call.input);
        let block_of = |from: usize| {
            let start = counts.offset(from) * size;
            start..start + counts.of(from) * size
        };
        // This rank's block in the payload of a rank that omits its own.
        let own_in = |from: usize| {
            let omitted = if from < rank { counts.of(from) * size } else { 0 };
            own.start - omitted..own.end - omitted
        };
        let posted = |from: usize| self.shared.await_post(from, seq, ctx);
        let payload = |from, range| self.payload(slot, from, seq, range);
        match kind {
            Broadcast if rank != root => {
                posted(root)?;
                result.copy_from_slice(payload(root, 0..result.len()));
            }
            Scatter if rank != root => {
                posted(root)?;
                result.copy_from_slice(payload(root, own_in(root)));
            }
            Scatter => {
                if let Some(input) = input {
                    result.copy_from_slice(&input[own]);
                }
            }
            AllGather | Gather if kind == AllGather || rank == root => {
                for from in self.others() {
                    let block = &mut result[block_of(from)];
                    posted(from)?;
                    block.copy_from_slice(payload(from, 0..block.len()));
                }
                if let Some(input) = input {
                    result[own].copy_from_slice(input);
                }
            }
            AllToAll => {
                for from in self.others() {
                    posted(from)?;
                    result[block_of(from)].copy_from_slice(payload(from, own_in(from)));
                }
                if let Some(input) = input {
                    result[own.clone()].copy_from_slice(&input[own]);
                }
            }
            AllReduce | Reduce | ReduceScatter if kind != Reduce || rank == root => {
                let range = if kind == ReduceScatter { own } else { 0..result.len() };
                for from in self.others() {
                    posted(from)?;
                    prefetch::read_slice(payload(from, range.clone()));
                }
                reduce_many(dtype, op, result, ranks, |from| payload(from, range.clone()));
            }
            Barrier => self.others().try_for_each(posted)?,
            _ => {}
        }
        Ok(())
    }
}
