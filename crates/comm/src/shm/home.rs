//! The communicator that others are split off, as all of them know it: there the ranks say whom they
//! wait for, whichever communicator it is in. Who is late in one may wait in another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::board::Board;
use super::layout::{LINE_BYTES, WAITS};
use crate::blame;
use crate::error::Peer;

/// So many that a rank waits for can be said at once.
const SAID_MAX: usize = LINE_BYTES / 8 - 1;

/// The first communicator.
#[derive(Debug)]
pub struct Home {
    /// Its memory, of which only these lines are used here.
    pub board: Board,
    pub peers: Vec<Peer>,
    /// How many communicators this rank has had.
    pub had: AtomicUsize,
}

/// A communicator's way to it.
#[derive(Debug)]
pub struct Waiting {
    home: Arc<Home>,
    /// Which of this rank's lines it has; if there are very many communicators, some share one.
    line: usize,
    /// The numbers of its ranks in the first one.
    members: Vec<u32>,
}

impl Waiting {
    pub fn new(home: Arc<Home>, members: Vec<u32>) -> Self {
        let line = home.had.fetch_add(1, Ordering::Relaxed) % WAITS;
        Self { home, line, members }
    }

    /// Where others are split off, too.
    pub fn home(&self) -> Arc<Home> {
        self.home.clone()
    }

    /// Says whom this rank waits for, of very many only some, and how long already.
    pub fn say(&self, ranks: &[usize], waited: Duration) {
        let board = &self.home.board;
        let line = board.layout.waits(board.rank, self.line);
        let said = ranks.iter().filter_map(|rank| self.members.get(*rank)).take(SAID_MAX);
        let mut count = 0;
        for rank in said {
            count += 1;
            board.word(line + count * 8).store(u64::from(*rank), Ordering::Relaxed);
        }
        let word = (waited.as_millis() as u64) << 8 | count as u64;
        board.word(line).store(word, Ordering::Release);
    }

    /// Whom a rank of the first communicator said that it waits for, and how long it did then.
    fn said_by(&self, rank: u32) -> Vec<(u32, Duration)> {
        let board = &self.home.board;
        let line = |line: usize| {
            let at = board.layout.waits(rank as usize, line);
            let word = board.word(at).load(Ordering::Acquire);
            let count = (word as usize & 0xff).min(SAID_MAX);
            let of = move |i: usize| board.word(at + i * 8).load(Ordering::Relaxed) as u32;
            let waited = Duration::from_millis(word >> 8);
            (1..=count).map(of).map(move |rank| (rank, waited))
        };
        let known = |(rank, _): &(u32, Duration)| (*rank as usize) < board.layout.ranks;
        (0..WAITS).flat_map(line).filter(known).collect()
    }

    /// Whom this rank waits for, by their places in the first communicator.
    pub fn own(&self) -> Vec<(u32, Duration)> {
        self.said_by(self.home.board.rank as u32)
    }

    /// Those for whom the missing wait in the end, as all said themselves; `late`: how long is waited
    /// for them.
    pub fn blamed(&self, missing: &[usize], late: Duration) -> Vec<Peer> {
        let waits = |rank: u32| {
            let long = |(_, waited): &(u32, Duration)| blame::explains(*waited, late);
            self.said_by(rank).into_iter().filter(long).map(|(rank, _)| rank).collect()
        };
        let missing: Vec<u32> = missing.iter().map(|rank| self.members[*rank]).collect();
        let mut blamed = blame::blamed(&missing, waits);
        // In a circle: whom this rank waits for.
        blamed.retain(|rank| *rank != self.home.board.rank as u32);
        let blamed = if blamed.is_empty() { missing } else { blamed };
        blamed.into_iter().map(|rank| self.peer(rank)).collect()
    }

    /// A rank of the first communicator as this one names it.
    pub fn peer(&self, rank: u32) -> Peer {
        let host = self.home.peers.get(rank as usize).map_or("?", |peer| &peer.host);
        match self.members.iter().position(|member| *member == rank) {
            Some(at) => Peer { rank: at as u32, host: host.to_owned() },
            None => Peer::outside(rank, host),
        }
    }
}

/// Who has closed a communicator waits for nobody in it.
impl Drop for Waiting {
    fn drop(&mut self) {
        self.say(&[], Duration::ZERO);
    }
}
