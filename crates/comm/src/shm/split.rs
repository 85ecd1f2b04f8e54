//! Communicators of some of the ranks: they get memory of their own in the same file, which goes back
//! when the last has closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ShmEngine;
use super::layout::Layout;
use super::meet::{self, Seat};
use super::segment::Segment;
use crate::background::Engine;
use crate::comm::order;
use crate::error::Peer;
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp};

/// The first page of the file says where it ends.
pub const FIRST_PAGE: usize = 4096;

/// Takes a range of the file that nobody has.
pub fn allocate(segment: &Segment, bytes: u64) -> Result<u64, CommError> {
    let page = segment.map(0, FIRST_PAGE)?;
    // SAFETY: it is inside, aligned, and only ever used as an atomic.
    let end = unsafe { &*page.at(0, 8).cast::<AtomicU64>() };
    let start = end.fetch_add(bytes, Ordering::SeqCst) + FIRST_PAGE as u64;
    segment.grow(start + bytes)?;
    Ok(start)
}

impl ShmEngine {
    pub(super) fn split_off(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Self>, CommError> {
        let all = self.colours(colour, key)?;
        let mut colours: Vec<u32> = all.iter().filter_map(|(colour, _)| *colour).collect();
        colours.sort_unstable();
        colours.dedup();
        let chunk_bytes = self.shared.settings.chunk_bytes;
        let layout = |colour: u32| Layout { ranks: order(&all, colour).len(), chunk_bytes };
        let bytes = |colour: &u32| layout(*colour).bytes().next_multiple_of(FIRST_PAGE) as u64;
        let start = self.room_for(colours.iter().map(bytes).sum())?;
        let Some(colour) = colour else { return Ok(None) };
        let before: u64 = colours.iter().take_while(|c| **c < colour).map(bytes).sum();
        let ranks = order(&all, colour);
        let rank = ranks.iter().position(|r| *r as usize == self.shared.board.rank).unwrap_or(0);
        let old = |of: &u32| *of as usize;
        let seat = Seat {
            segment: Arc::clone(&self.shared.segment),
            start: start + before,
            layout: layout(colour),
            rank,
            peers: (0..).zip(&ranks).map(|(rank, of)| self.renamed(rank, old(of))).collect(),
            home: Some(self.shared.waiting.home()),
            lives: ranks.iter().map(|of| self.shared.lives[old(of)]).collect(),
            arena: self.shared.arena.clone(),
            settings: self.shared.settings,
        };
        let unchecked = ranks.iter().map(|of| self.shared.here[old(of)]).collect();
        // If this communicator is over, so is what is made of it.
        let over = || self.shared.verdict_of("a split");
        let within = self.shared.settings.desync_after;
        meet::take_seat(seat, unchecked, within, true, &over).map(Some)
    }

    fn renamed(&self, rank: u32, of: usize) -> Peer {
        Peer { rank, host: self.shared.peers[of].host.clone() }
    }

    /// What all ranks want.
    fn colours(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Vec<(Option<u32>, i64)>, CommError> {
        let mut all = vec![0u8; self.shared.peers.len() * 16];
        let own = &mut all[self.shared.board.rank * 16..][..16];
        own[..8].copy_from_slice(&colour.map_or(-1, i64::from).to_le_bytes());
        own[8..].copy_from_slice(&key.to_le_bytes());
        self.run(bytes(Kind::AllGather, 16, &mut all))?;
        let number = |bytes: &[u8]| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            i64::from_le_bytes(number)
        };
        let of = |said: &[u8]| (u32::try_from(number(&said[..8])).ok(), number(&said[8..]));
        Ok(all.chunks_exact(16).map(of).collect())
    }

    /// Has the first rank take room for all colours.
    fn room_for(&mut self, bytes_of_all: u64) -> Result<u64, CommError> {
        let mut start = [0; 8];
        if self.shared.board.rank == 0 {
            let taken = allocate(&self.shared.segment, bytes_of_all);
            start = taken.map_err(|error| self.shared.fail(error))?.to_le_bytes();
        }
        self.run(bytes(Kind::Broadcast, 8, &mut start))?;
        Ok(u64::from_le_bytes(start))
    }
}

fn bytes(kind: Kind, count: usize, output: &mut [u8]) -> Call<'_> {
    let (dtype, op, counts) = (DType::U8, ReduceOp::Sum, Counts::Equal(count));
    Call { kind, dtype, op, root: 0, tag: 0, counts, input: None, output }
}
