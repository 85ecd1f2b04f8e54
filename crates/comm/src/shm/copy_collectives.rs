//! Collectives that only copy: broadcast, gather, scatter, all-gather, all-to-all, barrier.

use super::ShmEngine;
use super::buffers::Buffers;
use super::payload::SlotKind;
use super::round_plan::RoundPlan;
use super::wait::CallCtx;
use crate::{Call, CommError, Counts, Result};

impl ShmEngine {
    /// The longest block of an all-to-all with per-pair counts, over all ranks. The ranks exchange
    /// and check their counts.
    pub(super) fn max_block_bytes(&mut self, call: &Call, ctx: &CallCtx) -> Result<usize> {
        let Counts::PerPair { send, receive } = &call.counts else { return Ok(0) };
        let (rank, ranks) = (self.rank(), self.ranks());
        let own: Vec<u64> = send.iter().map(|count| *count as u64).collect();
        let counts = self.exchange_words(ctx, &own, |_| true)?;
        for from in self.others() {
            let (sent, expected) = (counts[from * ranks + rank], receive[from] as u64);
            if sent != expected {
                let [from, to] = [from, rank].map(|of| self.shared.peers[of].clone());
                let dtype = call.dtype;
                let error = CommError::CountMismatch { from, to, dtype, sent, expected };
                return Err(self.shared.publish_error(error));
            }
        }
        Ok(counts.into_iter().max().unwrap_or(0) as usize * call.dtype.size())
    }

    /// Runs a copy-only collective, posting one round ahead of what is read.
    pub(super) fn run_copies(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        buffers: &Buffers,
    ) -> Result {
        let first = self.next;
        for round in 0..=plan.rounds {
            if round < plan.rounds {
                self.post_round(ctx, plan, round, buffers)?;
                if let Some((own, chunk)) = plan.own_copy(round) {
                    buffers.copy_block(own, chunk.in_buffer());
                }
            }
            let Some(before) = round.checked_sub(1) else { continue };
            let seq = first + before as u64;
            for other in self.others() {
                if let Some(chunk) = plan.recv(before, other) {
                    self.shared.await_post(other, seq, ctx)?;
                    let from = self.payload(SlotKind::Slot, other, seq, chunk.in_slot());
                    // SAFETY: received blocks are written where no unsent input is left.
                    unsafe { buffers.write(chunk.in_buffer(), from) };
                }
            }
        }
        Ok(())
    }

    /// Posts this rank's blocks of a round.
    pub(super) fn post_round(
        &mut self,
        ctx: &CallCtx,
        plan: &RoundPlan,
        round: usize,
        buffers: &Buffers,
    ) -> Result {
        let seq = self.next_post(SlotKind::Slot, ctx)?;
        for chunk in plan.sends(round) {
            // SAFETY: the input is not written concurrently.
            let input = unsafe { buffers.input(chunk.in_buffer()) };
            self.write_payload(SlotKind::Slot, seq, chunk.in_slot(), input);
        }
        self.post(seq, SlotKind::Slot, ctx);
        Ok(())
    }
}
