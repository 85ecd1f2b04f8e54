//! Who waits for whom, across all communicators split off the same root communicator: a rank that
//! is late in one communicator may be waiting in another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::layout::{LINE_BYTES, WAIT_LINES};
use super::region::Region;
use crate::control::wait_graph;
use crate::error::Peer;

/// Maximum number of ranks in a wait record.
const MAX_WAITED_RANKS: usize = LINE_BYTES / 8 - 1;

/// The wait lines in the root communicator's region.
#[derive(Debug)]
pub struct WaitTable {
    /// The root communicator's memory.
    pub region: Region,
    pub peers: Vec<Peer>,
    /// Number of communicators this rank has registered.
    pub registered: AtomicUsize,
}

/// A communicator's entry in the table.
#[derive(Debug)]
pub struct WaitRecord {
    pub wait_table: Arc<WaitTable>,
    /// This rank's line for the communicator; shared if there are very many communicators.
    line: usize,
    /// Root ranks of the communicator's ranks.
    members: Vec<u32>,
}

impl WaitRecord {
    pub fn new(wait_table: Arc<WaitTable>, members: Vec<u32>) -> Self {
        let line = wait_table.registered.fetch_add(1, Ordering::Relaxed) % WAIT_LINES;
        Self { wait_table, line, members }
    }

    /// Publishes the ranks that this rank waits for (at most [`MAX_WAITED_RANKS`]) and for how
    /// long.
    pub fn publish(&self, ranks: &[usize], waited: Duration) {
        let region = &self.wait_table.region;
        let line = region.layout.waits(region.rank, self.line);
        let waited_ranks = ranks.iter().filter_map(|r| self.members.get(*r)).take(MAX_WAITED_RANKS);
        let mut count = 0;
        for rank in waited_ranks {
            count += 1;
            region.word(line + count * 8).store(u64::from(*rank), Ordering::Relaxed);
        }
        let word = (waited.as_millis() as u64) << 8 | count as u64;
        region.word(line).store(word, Ordering::Release);
    }

    /// The published waits of a root rank.
    fn published_by(&self, rank: u32) -> Vec<(u32, Duration)> {
        let region = &self.wait_table.region;
        let line = |line: usize| {
            let at = region.layout.waits(rank as usize, line);
            let word = region.word(at).load(Ordering::Acquire);
            let count = (word as usize & 0xff).min(MAX_WAITED_RANKS);
            let of = move |i: usize| region.word(at + i * 8).load(Ordering::Relaxed) as u32;
            let waited = Duration::from_millis(word >> 8);
            (1..=count).map(of).map(move |rank| (rank, waited))
        };
        let known = |(rank, _): &(u32, Duration)| (*rank as usize) < region.layout.ranks;
        (0..WAIT_LINES).flat_map(line).filter(known).collect()
    }

    /// This rank's waits, as root ranks.
    pub fn own_waits(&self) -> Vec<(u32, Duration)> {
        self.published_by(self.wait_table.region.rank as u32)
    }

    /// The ranks that ultimately delay the missing ranks, according to the published waits; `late`
    /// is how long they have been missing.
    pub fn root_causes(&self, missing: &[usize], late: Duration) -> Vec<Peer> {
        let waits = |rank: u32| {
            let long = |(_, waited): &(u32, Duration)| wait_graph::explains_delay(*waited, late);
            self.published_by(rank).into_iter().filter(long).map(|(rank, _)| rank).collect()
        };
        let missing: Vec<u32> = missing.iter().map(|rank| self.members[*rank]).collect();
        let mut causes = wait_graph::root_causes(&missing, waits);
        // A cycle through this rank: report the ranks it waits for.
        causes.retain(|rank| *rank != self.wait_table.region.rank as u32);
        let causes = if causes.is_empty() { missing } else { causes };
        causes.into_iter().map(|rank| self.peer(rank)).collect()
    }

    /// A root rank as a peer of this communicator.
    pub fn peer(&self, rank: u32) -> Peer {
        let host = self.wait_table.peers.get(rank as usize).map_or("?", |peer| &peer.host);
        match self.members.iter().position(|member| *member == rank) {
            Some(at) => Peer::new(at as u32, host),
            None => Peer::global(rank, host),
        }
    }
}

/// A closed communicator has no waits.
impl Drop for WaitRecord {
    fn drop(&mut self) {
        self.publish(&[], Duration::ZERO);
    }
}
