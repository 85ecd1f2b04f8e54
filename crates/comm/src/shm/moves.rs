//! Collectives that move bytes, and the reduction of which each rank gets its part.

use super::ShmEngine;
use super::buffers::Buffers;
use super::plan::Plan;
use super::reduce::Room;
use super::wait::Now;
use crate::kernel::{finish, reduce_many};
use crate::{Call, CommError, Counts, DType, ReduceOp};

impl ShmEngine {
    /// The longest part of an exchange, of all ranks: they tell each other what they send, and see
    /// whether it is what is expected.
    pub(super) fn longest(&mut self, call: &Call<'_>, now: &Now) -> Result<usize, CommError> {
        let Counts::Exchange { send, receive } = &call.counts else { return Ok(0) };
        let said: Vec<u8> = send.iter().flat_map(|count| (*count as u64).to_le_bytes()).collect();
        let room = Room::Slot(said.len());
        let number = self.turn(room, now)?;
        self.put(room, number, 0..said.len(), &said);
        self.post(number, now);
        let mut most = send.iter().max().copied().unwrap_or(0);
        for other in self.others() {
            self.shared.await_post(other, number, now)?;
            let (counts, _) = self.posted(room, other, number, 0..said.len()).as_chunks::<8>();
            let count = |of: &[u8; 8]| u64::from_le_bytes(*of);
            let comes = count(&counts[self.rank()]);
            if comes != receive[other] as u64 {
                return Err(self.shared.fail(CommError::Unmatched {
                    from: self.shared.peers[other].clone(),
                    to: self.shared.peers[self.rank()].clone(),
                    dtype: call.dtype,
                    sent: comes,
                    expected: receive[other] as u64,
                }));
            }
            most = most.max(counts.iter().map(count).max().unwrap_or(0) as usize);
        }
        Ok(most * call.dtype.size())
    }

    /// Posts a round ahead of what is taken.
    pub(super) fn move_all(
        &mut self,
        now: &Now,
        plan: &Plan,
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        let first = self.next;
        for round in 0..=plan.rounds {
            if round < plan.rounds {
                self.post_round(now, plan, round, buffers)?;
                keep(plan, round, buffers);
            }
            let Some(before) = round.checked_sub(1) else { continue };
            let number = first + before as u64;
            for other in self.others() {
                let piece = plan.takes(before, other);
                if piece.is_some() || plan.all_wait {
                    self.shared.await_post(other, number, now)?;
                }
                if let Some(piece) = piece {
                    self.taking(number, piece.bytes, |part| {
                        let piece = piece.part(part);
                        let from = self.posted(plan.room, other, number, piece.in_slot());
                        // SAFETY: what is taken goes where nothing is to be given any more.
                        unsafe { buffers.write(piece.in_buffer(), from) };
                    });
                }
            }
        }
        Ok(())
    }

    /// The same, but what comes is reduced.
    pub(super) fn scatter_reduced(
        &mut self,
        now: &Now,
        plan: &Plan,
        (dtype, op): (DType, ReduceOp),
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        let first = self.next;
        for round in 0..=plan.rounds {
            if round < plan.rounds {
                self.post_round(now, plan, round, buffers)?;
            }
            let Some(before) = round.checked_sub(1) else { continue };
            let Some((own, piece)) = plan.keeps(before) else { continue };
            let number = first + before as u64;
            self.others().try_for_each(|other| self.shared.await_post(other, number, now))?;
            let taken = self.others().find_map(|other| plan.takes(before, other));
            let slot = taken.map_or(0, |taken| taken.slot);
            self.taking(number, piece.bytes, |part| {
                let in_slot = slot + part.start..slot + part.end;
                let input = |rank: usize| match rank == self.rank() {
                    // SAFETY: nobody writes it before it is read.
                    true => unsafe { buffers.input(own + part.start..own + part.end) },
                    false => self.posted(plan.room, rank, number, in_slot.clone()),
                };
                let room = buffers.same(own, piece.at).then(|| {
                    let mut room = vec![0; part.len()];
                    reduce_many(dtype, op, &mut room, self.ranks(), input);
                    room
                });
                // SAFETY: in place the own input is the output, but then it is not used any more.
                let out = unsafe { buffers.output(piece.part(part.clone()).in_buffer()) };
                match room {
                    Some(room) => out.copy_from_slice(&room),
                    None => reduce_many(dtype, op, out, self.ranks(), input),
                }
                finish(dtype, op, self.ranks() as u32, out);
            });
        }
        Ok(())
    }

    fn post_round(
        &mut self,
        now: &Now,
        plan: &Plan,
        round: usize,
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        let number = self.turn(plan.room, now)?;
        for piece in plan.posts(round) {
            // SAFETY: what is given is written by nobody.
            let given = unsafe { buffers.input(piece.in_buffer()) };
            self.put(plan.room, number, piece.in_slot(), given);
        }
        self.post(number, now);
        Ok(())
    }
}

/// Copies what a rank has for itself.
fn keep(plan: &Plan, round: usize, buffers: &Buffers<'_>) {
    let Some((own, piece)) = plan.keeps(round) else { return };
    if !buffers.same(own, piece.at) {
        // SAFETY: not in place, input and output are different bytes.
        unsafe {
            let given = buffers.input(own..own + piece.bytes);
            buffers.write(piece.in_buffer(), given);
        }
    }
}
