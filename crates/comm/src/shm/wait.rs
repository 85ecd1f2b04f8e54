//! Waiting for other ranks, which always ends: with what is waited for, or with an error that says
//! why it will not come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Settings;
use super::arena::Arena;
use super::board::{Board, Doing};
use super::home::Waiting;
use super::layout::{MAIL_SLOTS, RING};
use super::segment::Segment;
use super::verdict;
use crate::error::Peer;
use crate::{CommError, Kind, Signature};

/// How often it is looked at first, without a system call: with a CPU for every rank, and without.
const SPINS_FREE: u32 = 300;
const SPINS_CROWDED: u32 = 20;
/// How long it is looked after that, before it is slept. Others are let run meanwhile: the rank that
/// is waited for may have been put on this CPU.
const YIELD_FREE: Duration = Duration::from_millis(1);
const YIELD_CROWDED: Duration = Duration::from_micros(5);
/// How often it is looked between two such.
const SPINS_BETWEEN: u32 = 30;
/// How long is slept before it is looked whether all are well: at first, and at most.
pub(super) const NAP: Duration = Duration::from_millis(1);
pub(super) const NAP_MAX: Duration = Duration::from_millis(16);

/// What this rank does.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    pub doing: Doing,
    pub signature: Signature,
    pub digest: u64,
}

/// A communicator as its rank and those who may abort it share it.
#[derive(Debug)]
pub struct Shared {
    pub board: Board,
    pub segment: Arc<Segment>,
    pub peers: Vec<Peer>,
    /// Where buffers can be that all ranks reach; `None` if one cannot.
    pub arena: Option<Arc<Arena>>,
    /// Under which number each rank shows that it lives.
    pub lives: Vec<u32>,
    /// Which ranks are of this process: they live.
    pub here: Vec<bool>,
    /// Whether there are more ranks than CPUs.
    pub crowded: bool,
    /// Where it is said whom is waited for.
    pub waiting: Waiting,
    pub settings: Settings,
}

impl Shared {
    /// Waits for a rank's post, which must belong to the same call.
    #[inline]
    pub fn await_post(&self, rank: usize, number: u64, now: &Now) -> Result<(), CommError> {
        if !self.board.has_posted(rank, number) {
            self.wait(rank, now, || self.board.has_posted(rank, number))?;
        }
        if self.board.digest(rank, number) == now.digest {
            return Ok(());
        }
        Err(self.disagreement(rank, now))
    }

    /// Waits until something holds that a rank brings about.
    #[inline]
    pub fn wait(&self, rank: usize, now: &Now, ready: impl Fn() -> bool) -> Result<(), CommError> {
        for _ in 0..if self.crowded { SPINS_CROWDED } else { SPINS_FREE } {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.wait_long(&[rank], now, &ready)
    }

    /// Waits until something holds that one of several ranks brings about. `now` is what the first
    /// of them is waited for.
    #[cold]
    pub fn wait_long(
        &self,
        ranks: &[usize],
        now: &Now,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), CommError> {
        let began = Instant::now();
        let looking = if self.crowded { YIELD_CROWDED } else { YIELD_FREE };
        // Only one of them can be slept on.
        let longest = if ranks.len() == 1 { NAP_MAX } else { NAP };
        let mut nap = NAP;
        while !ready() {
            let waited = began.elapsed();
            if waited < looking {
                std::thread::yield_now();
                let looked = (0..SPINS_BETWEEN).take_while(|_| !ready());
                looked.for_each(|_| std::hint::spin_loop());
                continue;
            }
            self.waiting.say(ranks, waited);
            let trouble = ranks.iter().find_map(|rank| self.trouble(*rank, now, waited));
            // What came before the trouble still counts.
            if let Some(error) = trouble.filter(|_| !ready()) {
                return Err(self.tell(error, now));
            }
            let first = ranks.first().copied().unwrap_or(self.board.rank);
            self.board.sleep(first, nap, || ready() || verdict::is_over(&self.board));
            nap = (nap * 2).min(longest);
        }
        self.waiting.say(&[], Duration::ZERO);
        Ok(())
    }

    /// Why the wait for a rank should end.
    pub(super) fn trouble(&self, rank: usize, now: &Now, waited: Duration) -> Option<CommError> {
        if let Some(error) = self.verdict(now) {
            return Some(error);
        }
        if let Some(why) = self.end_of(rank) {
            let (peer, call) = (self.peers[rank].clone(), now.signature.to_string());
            return Some(CommError::Lost { peer, why: why.to_owned(), call });
        }
        (waited >= self.settings.desync_after).then(|| self.late(rank, now))
    }

    /// How a rank ended, if it did.
    pub fn end_of(&self, rank: usize) -> Option<&'static str> {
        if self.board.has_left(rank) {
            return Some("it closed the communicator");
        }
        let dead = !self.here[rank] && !self.segment.lives(self.lives[rank]);
        dead.then_some("its process ended")
    }

    /// Why the communicator is over, if it is.
    pub fn verdict(&self, now: &Now) -> Option<CommError> {
        self.verdict_of(&now.signature.to_string())
    }

    /// The same, for a rank that is at this.
    pub fn verdict_of(&self, call: &str) -> Option<CommError> {
        verdict::read(&self.board, &self.peers, &self.waiting, call)
    }

    /// Tells all ranks of an error.
    pub fn fail(&self, error: CommError) -> CommError {
        verdict::declare(&self.board, &error);
        error
    }

    /// The same, unless another was told first: then that is it for this rank, too.
    pub fn tell(&self, error: CommError, now: &Now) -> CommError {
        match verdict::declare(&self.board, &error) {
            true => error,
            false => self.verdict(now).unwrap_or(error),
        }
    }

    /// A rank's post is of another call.
    #[cold]
    fn disagreement(&self, rank: usize, now: &Now) -> CommError {
        let error = match self.board.announced(rank, now.doing) {
            Some(theirs) => self.disagree(rank, now, theirs),
            None => self.late(rank, now),
        };
        self.tell(error, now)
    }

    /// A rank's post of before is of another call than this rank's was.
    #[cold]
    pub fn disagreed_before(&self, rank: usize, now: &Now) -> CommError {
        let by = self.peers[self.board.rank].clone();
        let unknown = || CommError::Aborted {
            by,
            why: format!(
                "{} called something else than this rank some calls ago",
                self.peers[rank]
            ),
        };
        let error = self.difference(rank, now).unwrap_or_else(unknown);
        self.tell(error, now)
    }

    /// The first of the last calls in which a rank called something else than this one, if any.
    fn difference(&self, rank: usize, now: &Now) -> Option<CommError> {
        let calls = now.doing.number();
        let differs = |call: u64| {
            let called = |rank: usize| self.board.announced(rank, Doing::Call(call));
            let (ours, theirs) = (called(self.board.rank)?, called(rank)?);
            let at = Now { doing: Doing::Call(call), signature: ours, digest: 0 };
            (ours != theirs).then(|| self.disagree(rank, &at, theirs))
        };
        (calls.saturating_sub(RING - 1)..=calls).find_map(differs)
    }

    pub fn disagree(&self, rank: usize, now: &Now, theirs: Signature) -> CommError {
        CommError::Disagree {
            sequence: now.doing.number(),
            ours_by: self.peers[self.board.rank].clone(),
            ours: Box::new(now.signature),
            theirs_by: self.peers[rank].clone(),
            theirs: Box::new(theirs),
        }
    }

    /// Whom a rank waits for in a message. Whoever could go on and does not waits for nobody.
    fn waits_for(&self, rank: usize) -> Option<usize> {
        let doing = self.board.doing(rank);
        let theirs = self.board.announced(rank, doing)?;
        let other = theirs.root as usize;
        let waits = match (doing, theirs.kind) {
            (Doing::Message(_), _) if other >= self.peers.len() => false,
            (Doing::Message(_), Kind::Receive) => self.board.on_its_way(other, rank) == 0,
            (Doing::Message(_), _) => self.board.on_its_way(rank, other) >= MAIL_SLOTS,
            _ => false,
        };
        waits.then_some(other)
    }

    /// It takes too long: because a rank called something else, or because it does not come.
    fn late(&self, rank: usize, now: &Now) -> CommError {
        let others = || (0..self.peers.len()).filter(|other| *other != self.board.rank);
        if let Some(disagree) = others().find_map(|other| self.difference(other, now)) {
            return disagree;
        }
        let doing = self.board.doing(rank);
        let theirs = self.board.announced(rank, doing);
        let own = self.board.rank as u32;
        let waits = !matches!(doing, Doing::Message(_)) || self.waits_for(rank).is_some();
        let stuck = |theirs: &Signature| stuck(own, now, doing, theirs) && waits;
        if let Some(theirs) = theirs.filter(stuck) {
            return self.disagree(rank, now, theirs);
        }
        let collective = matches!(now.doing, Doing::Call(_)) && !now.signature.kind.has_root();
        let came = |other: usize| self.board.doing(other).number() >= now.doing.number();
        let missing = |other: &usize| *other == rank || (collective && !came(*other));
        let missing: Vec<usize> = others().filter(missing).collect();
        CommError::Late {
            call: now.signature.to_string(),
            seconds: self.settings.desync_after.as_secs(),
            // Not those who would come if a third came.
            missing: self.waiting.blamed(&missing, self.settings.desync_after),
        }
    }
}

/// Marks the signature of a message that is one of several at once.
pub const OF_MANY: u64 = 1;

/// Whether a rank that is at `theirs` will never bring what this one, `own`, waits for.
fn stuck(own: u32, now: &Now, doing: Doing, theirs: &Signature) -> bool {
    match (now.doing, doing) {
        // It is at one that this rank has not called; else it is only behind.
        (Doing::Message(ours), Doing::Call(other)) => other > ours,
        // It may wait for a third, who has not come.
        (Doing::Call(ours), Doing::Message(other)) => {
            other < ours && theirs.root == own && theirs.shape != OF_MANY
        }
        (Doing::Message(_), Doing::Message(_)) => {
            let both = theirs.kind == now.signature.kind && theirs.kind == Kind::Receive;
            both && theirs.root == own && theirs.shape != OF_MANY
        }
        _ => false,
    }
}
