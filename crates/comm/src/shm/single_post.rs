//! Small collectives, in one post per rank: every rank posts its contribution and reads what it needs
//! from the posts of the others.

use super::ShmEngine;
use super::payload::SlotKind;
use super::wait::CallCtx;
use crate::reduce_kernel::reduce_many;
use crate::{Call, CallKind, Counts, Result};

/// Bytes of the longest contribution of a rank; `None` if this rank cannot derive it.
pub fn longest_contribution(call: &Call, ranks: usize) -> Option<usize> {
    use CallKind::{AllToAll, Barrier, ReduceScatter, Scatter};
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
        call: Call<'_>,
        bytes: usize,
    ) -> Result {
        use CallKind::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        let (rank, ranks, root) = (self.rank(), self.ranks(), call.root as usize);
        let (slot, size) = (SlotKind::of(bytes), call.dtype.size());
        let seq = self.next_post(slot, ctx)?;
        let contribution = call.contribution(rank);
        self.write_payload(slot, seq, 0..contribution.len(), contribution);
        self.post(seq, slot, ctx);

        let (own, result) = (call.own_block(rank), call.result_range(rank));
        let Call { kind, dtype, op, counts, input, output, .. } = call;
        let result = &mut output[result];
        let posted = |from: usize| self.shared.await_post(from, seq, ctx);
        let payload = |from, range| self.payload(slot, from, seq, range);
        match kind {
            Broadcast if rank != root => {
                posted(root)?;
                result.copy_from_slice(payload(root, 0..result.len()));
            }
            Scatter => {
                posted(root)?;
                result.copy_from_slice(payload(root, own));
            }
            AllGather | Gather if kind == AllGather || rank == root => {
                for from in self.others() {
                    let start = counts.offset(from) * size;
                    let block = &mut result[start..start + counts.of(from) * size];
                    posted(from)?;
                    block.copy_from_slice(payload(from, 0..block.len()));
                }
                if let Some(input) = input {
                    result[own].copy_from_slice(input);
                }
            }
            AllToAll => {
                for (from, block) in result.chunks_exact_mut(own.len().max(1)).enumerate() {
                    posted(from)?;
                    block.copy_from_slice(payload(from, own.clone()));
                }
            }
            AllReduce | Reduce | ReduceScatter if kind != Reduce || rank == root => {
                let range = if kind == ReduceScatter { own } else { 0..result.len() };
                self.others().try_for_each(posted)?;
                reduce_many(dtype, op, result, ranks, |from| payload(from, range.clone()));
            }
            Barrier => self.others().try_for_each(posted)?,
            _ => {}
        }
        Ok(())
    }
}
