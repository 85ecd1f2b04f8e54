//! Reductions of whole buffers. Small ones every rank reduces for itself; of large ones each reduces
//! a share, in the order of ranks, so that all get the same bits every time.

use std::ops::Range;

use super::ShmEngine;
use super::buffers::Buffers;
use super::layout::INLINE_BYTES;
use super::plan::{Piece, Shares};
use super::wait::Now;
use crate::kernel::{self, finish, reduce_many, stream};
use crate::{CommError, DType, Kind, ReduceOp};

/// Up to here it is faster that every rank reduces all.
const SMALL_BYTES: usize = 16 << 10;

/// From here on what is posted goes past the caches. Where two ranks share a cache that costs a
/// little; where they do not, it is several times as fast as to fetch it out of the other's.
const STREAM_BYTES: usize = 4 << 10;

/// From here on ranks tell each other where their buffers are.
const DIRECT_BYTES: usize = 64 << 10;

/// What is copied while it is in the nearest cache.
pub const BLOCK_BYTES: usize = 8 << 10;

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub struct What {
    pub dtype: DType,
    pub op: ReduceOp,
    /// Whether this rank gets the result.
    pub wants: bool,
    pub bytes: usize,
}

impl ShmEngine {
    pub(super) fn reduce(
        &mut self,
        now: &Now,
        what: What,
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        match what.bytes <= SMALL_BYTES {
            true => self.reduce_small(now, what, buffers),
            false if self.ranks() == 1 => {
                if !buffers.same(0, 0) {
                    // SAFETY: not in place, input and output are different bytes.
                    let (from, to) =
                        unsafe { (buffers.input(0..what.bytes), buffers.output(0..what.bytes)) };
                    to.copy_from_slice(from);
                }
                Ok(())
            }
            // Where only one gets the result, there is nothing to write for the others.
            false if now.signature.kind == Kind::AllReduce && what.bytes >= DIRECT_BYTES => {
                match self.reduce_direct(now, what, buffers)? {
                    true => Ok(()),
                    false => self.reduce_shares(now, what, buffers),
                }
            }
            false => self.reduce_shares(now, what, buffers),
        }
    }

    /// Everyone posts all it has; who wants the result reduces it.
    fn reduce_small(
        &mut self,
        now: &Now,
        what: What,
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        let What { dtype, op, wants, bytes } = what;
        let inline = bytes <= INLINE_BYTES;
        let number = self.room(now)?;
        // SAFETY: nobody writes the input now.
        let given = unsafe { buffers.input(0..bytes) };
        self.put(inline, number, 0..bytes, given);
        self.post(number, now);
        if !wants {
            return Ok(());
        }
        self.others().try_for_each(|other| self.shared.await_post(other, number, now))?;
        // SAFETY: the own input is posted, it is read from there.
        let out = unsafe { buffers.output(0..bytes) };
        let input = |rank: usize| self.posted(inline, rank, number, 0..bytes);
        if self.ranks() == 1 {
            out.copy_from_slice(input(0));
        } else {
            kernel::reduce_two(dtype, op, out, input(0), input(1));
        }
        (2..self.ranks()).for_each(|rank| kernel::reduce(dtype, op, out, input(rank)));
        finish(dtype, op, self.ranks() as u32, out);
        Ok(())
    }

    /// Chunk by chunk. In one round a rank gives of one chunk what the others reduce, reduces its
    /// share of the chunk before, and takes the others' shares of the one before that: it only ever
    /// waits for what the others did a round ago.
    fn reduce_shares(
        &mut self,
        now: &Now,
        what: What,
        buffers: &Buffers<'_>,
    ) -> Result<(), CommError> {
        let chunk = self.shared.settings.chunk_bytes;
        let shares = Shares::new(what.bytes, chunk, self.ranks());
        let last = if what.wants { shares.rounds + 1 } else { shares.rounds };
        for round in 0..=last {
            let number = self.next;
            if round <= shares.rounds {
                self.room(now)?;
            }
            if round < shares.rounds {
                self.give(number, &shares, round, buffers);
            }
            if round > 0 {
                self.others().try_for_each(|r| self.shared.await_post(r, number - 1, now))?;
            }
            if (1..=shares.rounds).contains(&round) {
                let share = shares.share(round - 1, self.rank());
                self.reduce_share(number, what, share, buffers);
            }
            if round <= shares.rounds {
                self.post(number, now);
            }
            if round > 1 && what.wants {
                self.take(number - 1, &shares, round - 2, buffers);
            }
        }
        Ok(())
    }

    /// Copies what others reduce into the slot.
    fn give(&self, number: u64, shares: &Shares, round: usize, buffers: &Buffers<'_>) {
        for other in self.others() {
            let share = shares.share(round, other);
            // SAFETY: of this chunk nothing is written yet.
            let given = unsafe { buffers.input(share.in_buffer()) };
            self.put(false, number, share.in_slot(), given);
        }
    }

    /// Reduces this rank's share, which the others have given in the post before, for the output
    /// and for the slot, where the others find it.
    fn reduce_share(&self, number: u64, what: What, share: Piece, buffers: &Buffers<'_>) {
        let What { dtype, op, wants, .. } = what;
        let mut inputs: Vec<&[u8]> = Vec::with_capacity(self.ranks());
        let mut room = [0; BLOCK_BYTES];
        let mut at = 0;
        while at < share.bytes {
            let bytes = BLOCK_BYTES.min(share.bytes - at);
            let block = Piece { at: share.at + at, slot: share.slot + at, bytes };
            inputs.clear();
            inputs.extend((0..self.ranks()).map(|rank| match rank == self.rank() {
                // SAFETY: it is written below only, when it is not used any more.
                true => unsafe { buffers.input(block.in_buffer()) },
                false => self.posted(false, rank, number - 1, block.in_slot()),
            }));
            let result = &mut room[..bytes];
            reduce_many(dtype, op, result, &inputs);
            finish(dtype, op, self.ranks() as u32, result);
            inputs.clear();
            stream::copy(self.to_post(false, number, self.result(&block)), result);
            if wants {
                // SAFETY: the input is not used any more.
                unsafe { buffers.write(block.in_buffer(), result) };
            }
            at += bytes;
        }
    }

    /// Copies what others have reduced into the output.
    fn take(&self, number: u64, shares: &Shares, round: usize, buffers: &Buffers<'_>) {
        for other in self.others() {
            let share = shares.share(round, other);
            let from = self.posted(false, other, number, self.result(&share));
            // SAFETY: of this chunk nothing is read any more.
            unsafe { buffers.write(share.in_buffer(), from) };
        }
    }

    /// Where a reduced share is in the slot: behind the chunk.
    fn result(&self, piece: &Piece) -> Range<usize> {
        let chunk = self.shared.settings.chunk_bytes;
        chunk + piece.slot..chunk + piece.slot + piece.bytes
    }

    /// What a rank posted.
    #[inline]
    pub(super) fn posted(
        &self,
        inline: bool,
        rank: usize,
        number: u64,
        range: Range<usize>,
    ) -> &[u8] {
        let (start, room) = self.place(inline, rank, number);
        assert!(range.start <= range.end && range.end <= room);
        // SAFETY: it is inside; it was posted, and is not written before our next post but one.
        unsafe { std::slice::from_raw_parts(start.add(range.start), range.len()) }
    }

    /// Puts something into what this rank is about to post.
    #[inline]
    pub(super) fn put(&self, inline: bool, number: u64, range: Range<usize>, data: &[u8]) {
        let room = self.to_post(inline, number, range);
        if data.len() < STREAM_BYTES {
            return room.copy_from_slice(data);
        }
        stream::copy(room, data);
    }

    /// Room for what this rank is about to post.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "it is memory of the segment, not of this struct")]
    fn to_post(&self, inline: bool, number: u64, range: Range<usize>) -> &mut [u8] {
        let (start, room) = self.place(inline, self.rank(), number);
        assert!(range.start <= range.end && range.end <= room);
        // SAFETY: it is inside; only this rank writes it, and nobody reads it before the post.
        unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
    }

    #[inline]
    fn place(&self, inline: bool, rank: usize, number: u64) -> (*mut u8, usize) {
        let board = &self.shared.board;
        match inline {
            true => (board.inline(rank, number), INLINE_BYTES),
            false => (board.slot(rank, number), board.layout.slot_bytes()),
        }
    }
}
