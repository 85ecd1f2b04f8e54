//! Reductions of buffers that all lie in the arena: every rank reduces its share out of all inputs
//! into all outputs, and no byte is copied besides.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::ShmEngine;
use super::arena::Arena;
use super::buffers::Buffers;
use super::plan::Shares;
use super::reduce::{BLOCK_BYTES, Room, What};
use super::verdict;
use super::wait::Now;
use crate::CommError;
use crate::kernel::{finish, reduce_many, stream};

/// Where a rank's buffers are in its range of the arena.
#[derive(Debug, Clone, Copy)]
struct Place {
    input: usize,
    output: usize,
}

impl ShmEngine {
    /// Reduces where it lies, if all ranks' buffers are in the arena; whether they were.
    pub(super) fn reduce_direct(
        &mut self,
        now: &Now,
        what: What,
        buffers: &Buffers<'_>,
    ) -> Result<bool, CommError> {
        let Some(arena) = self.shared.arena.clone() else { return Ok(false) };
        let own = buffers.in_arena(&arena, what.bytes);
        let done = match self.places(now, own) {
            Ok(Some(places)) => self.reduce_there(now, &arena, &places, what).map(|()| true),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        // The others may not know yet that it is over, and write on.
        if let (Err(_), Some((_, output))) = (&done, own) {
            arena.detach(output, what.bytes);
        }
        done
    }

    /// All ranks tell each other where their buffers are; `None` if one is elsewhere.
    fn places(
        &mut self,
        now: &Now,
        own: Option<(usize, usize)>,
    ) -> Result<Option<Vec<Place>>, CommError> {
        let word = |at: Option<usize>| at.map_or(0, |at| at as u64 + 1).to_le_bytes();
        let said = [word(own.map(|own| own.0)), word(own.map(|own| own.1))].concat();
        let number = self.turn(Room::Line, now)?;
        self.put(Room::Line, number, 0..said.len(), &said);
        self.post(number, now);
        self.others().try_for_each(|other| self.shared.await_post(other, number, now))?;
        let place = |rank: usize| {
            let (words, _) = self.posted(Room::Line, rank, number, 0..said.len()).as_chunks::<8>();
            let at = |word: &[u8; 8]| u64::from_le_bytes(*word).checked_sub(1);
            Some(Place { input: at(&words[0])? as usize, output: at(&words[1])? as usize })
        };
        Ok((0..self.ranks()).map(place).collect())
    }

    fn reduce_there(
        &mut self,
        now: &Now,
        arena: &Arc<Arena>,
        places: &[Place],
        what: What,
    ) -> Result<(), CommError> {
        let Some(addresses) = self.addresses(arena, places, what.bytes) else {
            let why = "a buffer is said to be outside of the arena".to_owned();
            let by = self.shared.peers[self.rank()].clone();
            return Err(self.shared.fail(CommError::Aborted { by, why }));
        };
        let share = Shares::new(what.bytes, what.bytes, self.ranks()).share(0, self.rank());
        let mut room = [0; BLOCK_BYTES];
        let mut at = share.at;
        while at < share.in_buffer().end {
            let bytes = BLOCK_BYTES.min(share.in_buffer().end - at);
            // SAFETY: all ranks have come with these buffers, and of this share only this rank
            // reads and writes anything before it posts.
            let input = |rank: usize| unsafe {
                std::slice::from_raw_parts(addresses[rank].0.add(at).cast_const(), bytes)
            };
            let result = &mut room[..bytes];
            reduce_many(what.dtype, what.op, result, self.ranks(), input);
            finish(what.dtype, what.op, self.ranks() as u32, result);
            for (input, output) in &addresses {
                // SAFETY: the same.
                let out = unsafe { std::slice::from_raw_parts_mut(output.add(at), bytes) };
                match input == output {
                    true => out.copy_from_slice(result),
                    false => stream::copy(out, result),
                }
            }
            at += bytes;
        }
        stream::settle();
        // A rank that knows that it is over has its input back, and what was read of it may be
        // anything.
        fence(Ordering::Acquire);
        if verdict::is_over(&self.shared.board)
            && let Some(error) = self.shared.verdict(now)
        {
            return Err(error);
        }
        let number = self.turn(Room::Line, now)?;
        self.post(number, now);
        self.others().try_for_each(|other| self.shared.await_post(other, number, now))
    }

    /// The addresses of all ranks' inputs and outputs.
    fn addresses(
        &self,
        arena: &Arc<Arena>,
        places: &[Place],
        bytes: usize,
    ) -> Option<Vec<(*mut u8, *mut u8)>> {
        let of = |(rank, place): (usize, &Place)| {
            let owner = self.shared.lives[rank] as usize;
            Some((arena.at(owner, place.input, bytes)?, arena.at(owner, place.output, bytes)?))
        };
        places.iter().enumerate().map(of).collect()
    }
}
