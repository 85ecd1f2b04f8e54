//! Splits a communicator. Children get ranges of the same file, which are freed when the last rank
//! has closed them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ShmEngine;
use super::bootstrap::{self, JoinContext};
use super::layout::RegionLayout;
use super::segment::Segment;
use crate::comm::split_order;
use crate::engine::{Engine, all_gather_split_args};
use crate::error::Peer;
use crate::{Call, CallKind, Counts, DType, Result};

/// The first page of the file holds its allocated size.
pub const FIRST_PAGE: usize = 4096;

/// Allocates a range of the file.
pub fn allocate(segment: &Segment, bytes: u64) -> Result<u64> {
    let page = segment.map(0, FIRST_PAGE)?;
    // SAFETY: it is inside the mapping, aligned, and only accessed atomically.
    let end = unsafe { &*page.at(0, 8).cast::<AtomicU64>() };
    let start = end.fetch_add(bytes, Ordering::SeqCst) + FIRST_PAGE as u64;
    segment.grow(start + bytes)?;
    Ok(start)
}

impl ShmEngine {
    pub(super) fn split_off(&mut self, colour: Option<u32>, key: i64) -> Result<Option<Self>> {
        let all = all_gather_split_args(self, colour, key)?;
        let mut colours: Vec<u32> = all.iter().filter_map(|(colour, _)| *colour).collect();
        colours.sort_unstable();
        colours.dedup();
        let chunk_bytes = self.shared.config.chunk_bytes;
        let layout = |c: u32| RegionLayout { ranks: split_order(&all, c).len(), chunk_bytes };
        let bytes = |colour: &u32| layout(*colour).bytes().next_multiple_of(FIRST_PAGE) as u64;
        let start = self.allocate_children(colours.iter().map(bytes).sum())?;
        let Some(colour) = colour else { return Ok(None) };
        let before: u64 = colours.iter().take_while(|c| **c < colour).map(bytes).sum();
        let ranks = split_order(&all, colour);
        let rank = ranks.iter().position(|r| *r as usize == self.shared.region.rank).unwrap_or(0);
        let old = |of: &u32| *of as usize;
        let context = JoinContext {
            segment: Arc::clone(&self.shared.segment),
            start: start + before,
            layout: layout(colour),
            rank,
            peers: (0..).zip(&ranks).map(|(rank, of)| self.child_peer(rank, old(of))).collect(),
            wait_table: Some(self.shared.wait_record.wait_table.clone()),
            root_ranks: ranks.iter().map(|of| self.shared.root_ranks[old(of)]).collect(),
            arena: self.shared.arena.clone(),
            config: self.shared.config,
        };
        let skip_liveness = ranks.iter().map(|of| self.shared.same_process[old(of)]).collect();
        // If this communicator fails, so does the split.
        let cancelled = || self.shared.abort_error_during("split");
        let within = self.shared.config.desync_after;
        bootstrap::attach(context, skip_liveness, within, true, &cancelled).map(Some)
    }

    fn child_peer(&self, rank: u32, of: usize) -> Peer {
        Peer::new(rank, self.shared.peers[of].host.clone())
    }

    /// Rank 0 allocates memory for all colours.
    fn allocate_children(&mut self, bytes_of_all: u64) -> Result<u64> {
        let mut start = [0; 8];
        if self.shared.region.rank == 0 {
            let allocated = allocate(&self.shared.segment, bytes_of_all);
            start = allocated.map_err(|error| self.shared.publish_error(error))?.to_le_bytes();
        }
        let counts = Counts::Equal(start.len());
        self.run(Call::new(CallKind::Broadcast, DType::U8, counts, &mut start))?;
        Ok(u64::from_le_bytes(start))
    }
}
