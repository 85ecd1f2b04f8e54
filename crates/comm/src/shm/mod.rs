//! Ranks of one node, through memory that they share.
//!
//! Ranks tell each other one thing only: a *post*, a cache line with a number and, where there is
//! room, the data itself (`board.rs`). All that is larger goes in rounds through slots (`plan.rs`),
//! each rank a round ahead of what it reads, so that nobody waits for somebody who is a little
//! slower. A wait spins, then sleeps, and always ends (`wait.rs`).
//!
//! Large buffers that the communicator itself has given out are in memory that all ranks reach
//! (`arena.rs`): they are reduced where they are (`direct.rs`).
//!
//! The memory has no name: rank 0 makes it and gives it to the others over a socket that is gone
//! with it (`meet.rs`), so that nothing is left behind, whoever is killed, and nobody of another user
//! comes in. That a rank lives is a lock on the memory, which the kernel frees with its process: it
//! needs no process numbers, which other name spaces do not share, and no thread that listens.

mod arena;
mod barrier;
mod board;
mod buffers;
mod direct;
mod exchange;
mod group;
mod habit;
mod home;
mod layout;
mod mail;
mod meet;
mod moves;
mod plan;
mod reduce;
mod segment;
pub(crate) mod sign;
mod split;
mod verdict;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use self::board::Doing;
use self::buffers::Buffers;
use self::habit::Habit;
use self::layout::{READING, RING, SLOTS};
use self::mail::Mailbox;
use self::plan::Plan;
use self::reduce::Room;
use self::wait::{Now, Shared};
use crate::background::{Abort, Background, Engine, Memory, Over, apart};
use crate::blame::Waits;
use crate::error::Peer;
use crate::{Call, CommError, Kind, Signature};

pub use self::meet::{join, join_unless};

/// How a communicator is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a rank waits for another that lives before it gives up.
    pub desync_after: Duration,
    /// Whether all ranks compare what they call before any data moves. The same for all ranks.
    pub debug: bool,
    /// How long ranks wait for each other at the beginning.
    pub join_within: Duration,
    /// How much of a buffer goes through shared memory at a time. The same for all ranks.
    pub chunk_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            desync_after: Duration::from_secs(300),
            debug: false,
            join_within: Duration::from_secs(60),
            chunk_bytes: 256 << 10,
        }
    }
}

/// One rank.
#[derive(Debug)]
pub struct ShmEngine {
    shared: Arc<Shared>,
    /// The number of its next post.
    next: u64,
    /// The posts of all up to this number are of the same calls.
    compared: u64,
    /// How many collectives it has begun.
    calls: u64,
    mailbox: Mailbox,
    habit: Habit,
    /// Where its memory is in the file, if it is only for this communicator.
    region: Option<(u64, u64)>,
}

/// A world of ranks that are threads of this process, for tests.
pub fn world(ranks: u32) -> Result<Vec<Background>, CommError> {
    world_with(ranks, Settings::default())
}

/// The same with settings.
pub fn world_with(ranks: u32, settings: Settings) -> Result<Vec<Background>, CommError> {
    let engines = meet::threads(ranks, settings)?;
    Ok(engines.into_iter().map(|engine| Background::new(Box::new(engine))).collect())
}

impl ShmEngine {
    fn new(shared: Shared, region: Option<(u64, u64)>) -> Self {
        let mailbox = Mailbox::new(shared.peers.len());
        let habit = Habit::default();
        Self { shared: Arc::new(shared), next: 1, compared: 0, calls: 0, mailbox, habit, region }
    }

    fn rank(&self) -> usize {
        self.shared.board.rank
    }

    fn ranks(&self) -> usize {
        self.shared.peers.len()
    }

    /// The other ranks.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank();
        (0..self.ranks()).filter(move |other| *other != rank)
    }

    /// Says what this rank calls.
    #[inline]
    fn begin(&mut self, signature: Signature) -> Result<Now, CommError> {
        self.calls += 1;
        let words = sign::encode(&signature);
        let now = Now { doing: Doing::Call(self.calls), signature, digest: sign::digest(words) };
        self.shared.board.announce(now.doing, words);
        if verdict::is_over(&self.shared.board)
            && let Some(error) = self.shared.verdict(&now)
        {
            return Err(error);
        }
        if self.shared.settings.debug {
            let number = self.turn(Room::Line, &now)?;
            self.post(number, &now);
            self.others().try_for_each(|other| self.shared.await_post(other, number, &now))?;
        }
        Ok(now)
    }

    /// The number of the next post, once there is room for it.
    #[inline]
    fn turn(&mut self, room: Room, now: &Now) -> Result<u64, CommError> {
        let number = self.next;
        // The others must have read the post whose place it takes.
        let places = match room {
            Room::Line => RING,
            Room::Slot(_) => SLOTS,
        };
        let read = (number + READING).saturating_sub(places);
        if read > self.compared {
            for other in self.others() {
                let board = &self.shared.board;
                if !board.has_posted(other, read) {
                    self.shared.wait(other, now, || board.has_posted(other, read))?;
                }
                self.compare(other, read, now)?;
            }
            self.compared = read;
        }
        Ok(number)
    }

    /// Whether another's posts up to this one are of the calls that this rank's are: nobody may have
    /// had to look at them. Who is so far ahead that another is in its place, or soon will be, has
    /// looked at ours.
    #[inline]
    fn compare(&self, other: usize, read: u64, now: &Now) -> Result<(), CommError> {
        let board = &self.shared.board;
        for number in self.compared + 1..=read {
            let differs = board.digest(other, number) != board.digest(board.rank, number);
            fence(Ordering::Acquire);
            if differs && !board.has_posted(other, number + RING - 1) {
                return Err(self.shared.disagreed_before(other, now));
            }
        }
        Ok(())
    }

    #[inline]
    fn post(&mut self, number: u64, now: &Now) {
        self.habit.settle();
        self.shared.board.post(number, now.digest);
        self.next = number + 1;
    }

    fn collective(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let now = self.begin(call.signature(self.ranks()))?;
        let (dtype, op, kind, root) = (call.dtype, call.op, call.kind, call.root as usize);
        match kind {
            Kind::AllReduce | Kind::Reduce => {
                let bytes = call.counts.of(self.rank()) * dtype.size();
                let wants = kind == Kind::AllReduce || root == self.rank();
                let buffers = Buffers::new(call, self.rank());
                self.reduce(&now, reduce::What { dtype, op, wants, bytes }, &buffers)
            }
            _ => {
                let longest = self.longest(&call, &now)?;
                let chunk = self.shared.settings.chunk_bytes;
                let plan = Plan::new(&call, self.rank(), self.ranks(), chunk, longest);
                let buffers = Buffers::new(call, self.rank());
                match kind {
                    Kind::ReduceScatter => self.scatter_reduced(&now, &plan, (dtype, op), &buffers),
                    _ => self.move_all(&now, &plan, &buffers),
                }
            }
        }
    }
}

impl Engine for ShmEngine {
    fn rank(&self) -> u32 {
        self.shared.board.rank as u32
    }

    fn peers(&self) -> Vec<Peer> {
        self.shared.peers.clone()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let done = match call.kind {
            Kind::Send => self.send(&call),
            Kind::Receive => self.receive(call),
            _ => self.collective(call),
        };
        self.shared.board.now(Doing::Nothing(self.calls));
        done
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = apart(calls);
        let done = self.run_messages(messages);
        self.shared.board.now(Doing::Nothing(self.calls));
        done?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let child = self.split_off(colour, key)?;
        Ok(child.map(|child| Box::new(child) as Box<dyn Engine>))
    }

    fn memory(&self) -> Memory {
        let Some(arena) = self.shared.arena.clone() else { return Memory::default() };
        Memory { host: Arc::new(move |bytes| arena.buffer(bytes)), device: None }
    }

    fn waits(&self) -> Waits {
        let shared = self.shared.clone();
        Arc::new(move || shared.waiting.own())
    }

    fn abort(&self) -> Abort {
        let shared = self.shared.clone();
        Arc::new(move |why| {
            let by = shared.peers[shared.board.rank].clone();
            shared.fail(CommError::Aborted { by, why: why.to_owned() });
        })
    }

    fn over(&self) -> Over {
        let shared = self.shared.clone();
        Arc::new(move || verdict::is_over(&shared.board))
    }
}

/// A rank that is no more must not be waited for.
impl Drop for ShmEngine {
    fn drop(&mut self) {
        self.shared.board.leave();
        if let Some((start, bytes)) = self.region
            && verdict::close(&self.shared.board)
        {
            self.shared.segment.free(start, bytes);
        }
    }
}
