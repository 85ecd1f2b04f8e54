//! Reductions of whole buffers. Small ones every rank reduces for itself; of large ones each reduces
//! a share, in the order of ranks, so that all get the same bits every time.

use std::ops::Range;

use super::ShmEngine;
use super::buffers::Buffers;
use super::habit::{Costs, LEAST_BYTES};
use super::layout::INLINE_BYTES;
use super::plan::{Piece, Shares};
use super::wait::Now;
use crate::kernel::{finish, reduce_many};
use crate::{CommError, DType, Kind, ReduceOp};

/// Up to here it is faster that every rank reduces all.
const SMALL_BYTES: usize = 8 << 10;

/// From here on ranks tell each other where their buffers are.
const DIRECT_BYTES: usize = 64 << 10;

/// What is copied while it is in the nearest cache.
pub const BLOCK_BYTES: usize = 8 << 10;

/// Where a post's bytes are.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// In its line.
    Line,
    /// In a slot, of which all ranks together know that so many are used.
    Slot(usize),
}

impl Room {
    /// For a post of so many bytes, which are of one piece.
    pub fn of(bytes: usize) -> Self {
        if bytes <= INLINE_BYTES { Self::Line } else { Self::Slot(bytes) }
    }
}

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
        let place = Room::of(bytes);
        let number = self.turn(place, now)?;
        // SAFETY: nobody writes the input now.
        let given = unsafe { buffers.input(0..bytes) };
        self.put(place, number, 0..bytes, given);
        self.post(number, now);
        if !wants {
            return Ok(());
        }
        self.others().try_for_each(|other| self.shared.await_post(other, number, now))?;
        // SAFETY: the own input is posted, it is read from there.
        let out = unsafe { buffers.output(0..bytes) };
        self.taking(number, bytes, |part| {
            let out = &mut out[part.clone()];
            let input = |rank: usize| self.posted(place, rank, number, part.clone());
            reduce_many(dtype, op, out, self.ranks(), input);
            finish(dtype, op, self.ranks() as u32, out);
        });
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
                self.turn(shares.room(), now)?;
            }
            if round < shares.rounds {
                self.give(number, &shares, round, buffers);
            }
            if round > 0 {
                self.others().try_for_each(|r| self.shared.await_post(r, number - 1, now))?;
            }
            if (1..=shares.rounds).contains(&round) {
                let share = shares.share(round - 1, self.rank());
                self.reduce_share(number, what, (&shares, share), buffers);
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
            self.put(shares.room(), number, share.in_slot(), given);
        }
    }

    /// Reduces this rank's share, which the others have given in the post before, for the output
    /// and for the slot, where the others find it.
    fn reduce_share(
        &self,
        number: u64,
        what: What,
        (shares, share): (&Shares, Piece),
        buffers: &Buffers<'_>,
    ) {
        let What { dtype, op, wants, .. } = what;
        let mut room = [0; BLOCK_BYTES];
        self.taking(number - 1, share.bytes, |part| {
            for block in share.part(part).blocks(BLOCK_BYTES) {
                let input = |rank: usize| match rank == self.rank() {
                    // SAFETY: it is written below only, when it is not used any more.
                    true => unsafe { buffers.input(block.in_buffer()) },
                    false => self.posted(shares.room(), rank, number - 1, block.in_slot()),
                };
                let result = &mut room[..block.bytes];
                reduce_many(dtype, op, result, self.ranks(), input);
                finish(dtype, op, self.ranks() as u32, result);
                let to = self.to_post(shares.room(), number, shares.result(&block));
                self.habit.write(share.bytes, to, result);
                if wants {
                    // SAFETY: the input is not used any more.
                    unsafe { buffers.write(block.in_buffer(), result) };
                }
            }
        });
    }

    /// Copies what others have reduced into the output.
    fn take(&self, number: u64, shares: &Shares, round: usize, buffers: &Buffers<'_>) {
        for other in self.others() {
            let share = shares.share(round, other);
            let from = self.posted(shares.room(), other, number, shares.result(&share));
            // SAFETY: of this chunk nothing is read any more.
            unsafe { buffers.write(share.in_buffer(), from) };
        }
    }

    /// Takes what a post has, part by part.
    #[inline]
    pub(super) fn taking(&self, number: u64, bytes: usize, take: impl FnMut(Range<usize>)) {
        if let Some((class, costs)) = self.habit.read(number, bytes, take) {
            self.shared.board.say_costs(class, costs);
        }
    }

    /// What a rank posted.
    #[inline]
    pub(super) fn posted(
        &self,
        room: Room,
        rank: usize,
        number: u64,
        range: Range<usize>,
    ) -> &[u8] {
        let (start, room) = self.place(room, rank, number);
        assert!(range.start <= range.end && range.end <= room);
        // SAFETY: it is inside; it was posted, and is not written before our next post but one.
        unsafe { std::slice::from_raw_parts(start.add(range.start), range.len()) }
    }

    /// Puts something into what this rank is about to post.
    #[inline]
    pub(super) fn put(&self, room: Room, number: u64, range: Range<usize>, data: &[u8]) {
        let out = self.to_post(room, number, range);
        if data.len() < LEAST_BYTES {
            return out.copy_from_slice(data);
        }
        self.habit.write_all(number, out, data, |class| {
            let of = |other| self.shared.board.read_costs(other, class);
            self.others().map(of).fold(Costs::default(), Costs::slower)
        });
    }

    /// Room for what this rank is about to post.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "it is memory of the segment, not of this struct")]
    fn to_post(&self, room: Room, number: u64, range: Range<usize>) -> &mut [u8] {
        let (start, room) = self.place(room, self.rank(), number);
        assert!(range.start <= range.end && range.end <= room);
        // SAFETY: it is inside; only this rank writes it, and nobody reads it before the post.
        unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
    }

    #[inline]
    fn place(&self, room: Room, rank: usize, number: u64) -> (*mut u8, usize) {
        let board = &self.shared.board;
        match room {
            Room::Line => (board.inline(rank, number), INLINE_BYTES),
            Room::Slot(bytes) => {
                let start = board.layout.start(number, bytes);
                // SAFETY: it starts inside of the slot.
                let at = unsafe { board.slot(rank, number).add(start) };
                (at, board.layout.slot_bytes() - start)
            }
        }
    }
}
