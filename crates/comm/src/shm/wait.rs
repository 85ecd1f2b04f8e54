//! Bounded waits for other ranks: they end with the awaited post or with an error that says why it
//! will not come.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::arena::Arena;
use super::layout::P2P_SLOTS;
use super::region::Region;
use crate::bootstrap::BootstrapConfig;
use crate::control::{CallWatch, CommMonitor, StallAction, Wait};
use crate::error::Peer;
use crate::{CallKind, CommError, Result, Signature};

/// Iterations of the initial spin phase, with a CPU per rank and when oversubscribed.
const SPINS: u32 = 300;
const SPINS_OVERSUBSCRIBED: u32 = 20;
/// Duration of the yield phase that follows, before sleeping. It lets the awaited rank run if it
/// shares this CPU.
const YIELD_FOR: Duration = Duration::from_millis(1);
const YIELD_FOR_OVERSUBSCRIBED: Duration = Duration::from_micros(100);
/// Spin iterations between two yields.
const SPINS_PER_YIELD: u32 = 30;
/// Minimum and maximum sleep between fault checks.
pub(super) const SLEEP_MIN: Duration = Duration::from_millis(1);
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(16);

/// A call in progress.
#[derive(Debug, Clone, Copy)]
pub struct CallCtx {
    /// How many collectives this rank has begun, with this one.
    pub calls: u64,
    pub signature: Signature,
    pub digest: u64,
}

/// State of a communicator.
#[derive(Debug)]
pub struct ShmState {
    pub region: Region,
    /// The ranks of the node, as the monitor names them.
    pub peers: Vec<Peer>,
    /// Their global ranks.
    pub members: Vec<u32>,
    /// The arena; `None` unless all ranks map it.
    pub arena: Option<Arc<Arena>>,
    /// Whether there are more ranks than CPUs.
    pub oversubscribed: bool,
    /// Decides on faults.
    pub monitor: Arc<CommMonitor>,
    pub config: Arc<BootstrapConfig>,
}

impl ShmState {
    /// Waits for a rank's post and checks that it belongs to the same call.
    #[inline]
    pub fn await_post(&self, rank: usize, seq: u64, ctx: &CallCtx) -> Result {
        if !self.region.has_posted(rank, seq) {
            self.wait(rank, ctx, || self.region.has_posted(rank, seq))?;
        }
        // A rank that does not wait for this one may have made its next post already.
        self.region.prefetch_post(rank, seq + 1);
        let digest = self.region.digest(rank, seq);
        if digest.is_some() && digest == self.region.digest(self.region.rank, seq) {
            return Ok(());
        }
        Err(self.mismatch_error(rank, ctx))
    }

    /// Waits for a condition that a rank brings about.
    #[inline]
    pub fn wait(&self, rank: usize, ctx: &CallCtx, ready: impl Fn() -> bool) -> Result {
        if self.spin(&ready) { Ok(()) } else { self.wait_long(&[rank], ctx, &ready) }
    }

    /// Polls a condition for a short time; whether it holds.
    #[inline]
    pub fn spin(&self, ready: &impl Fn() -> bool) -> bool {
        let spins = if self.oversubscribed { SPINS_OVERSUBSCRIBED } else { SPINS };
        (0..spins).any(|_| {
            let is_ready = ready();
            if !is_ready {
                std::hint::spin_loop();
            }
            is_ready
        })
    }

    /// Waits for a condition that one of several ranks brings about; `ctx` waits for the first of
    /// them.
    #[cold]
    pub fn wait_long(&self, ranks: &[usize], ctx: &CallCtx, ready: &dyn Fn() -> bool) -> Result {
        let began = clock::now();
        let mut watch = self.watch(began);
        let yield_for = if self.oversubscribed { YIELD_FOR_OVERSUBSCRIBED } else { YIELD_FOR };
        // Only one doorbell can be slept on.
        let max_sleep = if ranks.len() == 1 { SLEEP_MAX } else { SLEEP_MIN };
        let mut sleep = SLEEP_MIN;
        while !ready() {
            if clock::elapsed(began) < yield_for {
                std::thread::yield_now();
                let spins = (0..SPINS_PER_YIELD).take_while(|_| !ready());
                spins.for_each(|_| std::hint::spin_loop());
                continue;
            }
            self.check(&mut watch, ranks, ctx, ready)?;
            let first = ranks.first().copied().unwrap_or(self.region.rank);
            self.region.wait_doorbell(first, sleep, || ready() || self.monitor.has_announcement());
            sleep = (sleep * 2).min(max_sleep);
        }
        self.region.withdraw_wait();
        Ok(())
    }

    /// Watches a wait that began at a time.
    pub fn watch(&self, began: Instant) -> CallWatch {
        CallWatch::new(self.monitor.clone(), self.config.desync_after, began)
    }

    /// Reports what is known about a wait, and fails if it must end. What arrived before a failure is
    /// still delivered.
    pub fn check(
        &self,
        watch: &mut CallWatch,
        ranks: &[usize],
        ctx: &CallCtx,
        ready: &dyn Fn() -> bool,
    ) -> Result {
        if let Some(error) = self.announced_error(ctx) {
            return if ready() { Ok(()) } else { Err(self.fail_with(error)) };
        }
        self.region.publish_wait(ctx.calls, &ctx.signature);
        let now = clock::now();
        let departed = ranks.iter().find(|rank| self.region.has_closed(**rank));
        if let Some(rank) = departed.filter(|_| !ready()) {
            let error = self.monitor.departed(self.members[*rank], &self.describe(ctx));
            // A rank that has failed departs as well; rank 0 knows why it failed.
            match self.has_failed_rank() {
                true => watch.suspect(error, now),
                false => return Err(self.publish_error(error)),
            }
        }
        match watch.check(0, now) {
            StallAction::Wait(_) => {}
            action => {
                let deadlock = || ranks.iter().find_map(|rank| self.deadlock(*rank, ctx));
                if action == StallAction::Timeout
                    && let Some(error) = deadlock()
                {
                    return Err(self.publish_error(error));
                }
                let in_call = !ctx.signature.kind.is_p2p();
                let call_number = in_call.then(|| self.monitor.calls());
                let awaited = ranks.iter().map(|rank| self.members[*rank]).collect();
                watch.report(action, Wait { call_number, awaited, call: self.describe(ctx) }, now);
            }
        }
        watch.check_suspicion(now, now).map_err(|error| self.mark_failed(error))?;
        Ok(())
    }

    /// The communicator's error, if it has failed.
    pub fn announced_error(&self, ctx: &CallCtx) -> Option<CommError> {
        self.monitor.announced_error(&|| self.describe(ctx), &|_, _| false)
    }

    /// A call, for errors.
    fn describe(&self, ctx: &CallCtx) -> String {
        match ctx.signature.kind.is_p2p() {
            true => ctx.signature.to_string(),
            false => self.monitor.current_call(),
        }
    }

    /// Fails with the communicator's error.
    pub fn fail_with(&self, error: CommError) -> CommError {
        self.mark_failed(self.monitor.fail_with_announced(error))
    }

    /// Reports an error to all ranks and fails with it.
    pub fn publish_error(&self, error: CommError) -> CommError {
        self.mark_failed(self.monitor.report_and_fail(error))
    }

    /// Shows the other ranks of the node that this one has failed, before it departs or changes
    /// buffers that they read.
    pub fn show_failure(&self) {
        self.region.word(self.region.layout.failed()).store(1, Ordering::SeqCst);
    }

    fn mark_failed(&self, error: CommError) -> CommError {
        self.show_failure();
        error
    }

    /// Whether a rank of the node has failed.
    pub fn has_failed_rank(&self) -> bool {
        self.region.word(self.region.layout.failed()).load(Ordering::SeqCst) != 0
    }

    /// Fails if a rank of the node has.
    pub fn check_ranks(&self, ctx: &CallCtx) -> Result {
        if !self.has_failed_rank() {
            return Ok(());
        }
        let by = self.peers[self.region.rank].clone();
        let why = "another rank of this node failed".to_owned();
        let mut watch = self.watch(clock::now());
        watch.suspect(CommError::Aborted { by, why }, clock::now());
        Err(self.mark_failed(watch.await_announced_error(&self.describe(ctx), None)))
    }

    /// Reading the memory of a rank failed, probably because it has exited: rank 0 knows why.
    #[cold]
    pub fn read_error(&self, rank: usize, why: &std::io::Error, ctx: &CallCtx) -> CommError {
        let (peer, call) = (self.peers[rank].clone(), self.describe(ctx));
        let mut watch = self.watch(clock::now());
        let why = format!("reading its memory failed: {why}");
        watch.suspect(CommError::RankLost { peer, why, call: call.clone() }, clock::now());
        self.mark_failed(watch.await_announced_error(&call, None))
    }

    /// A rank's post, or one before it, belongs to another call: rank 0 finds out which rank made
    /// which call.
    #[cold]
    pub fn mismatch_error(&self, rank: usize, ctx: &CallCtx) -> CommError {
        let why = format!("{} made a different call", self.peers[rank]);
        let mut watch = self.watch(clock::now());
        let error = CommError::system(self.describe(ctx), why);
        watch.call_mismatch(self.monitor.calls(), error, clock::now());
        self.mark_failed(watch.await_announced_error(&self.describe(ctx), None))
    }

    /// A mismatch between this rank's message and the call of another rank.
    pub fn mismatch(&self, rank: usize, ctx: &CallCtx, theirs: Signature) -> CommError {
        let ours = (self.members[self.region.rank], ctx.signature);
        self.monitor.mismatch(self.monitor.calls(), ours, (self.members[rank], theirs))
    }

    /// Whether a rank's message waits for another rank, and cannot make progress.
    fn is_blocked(&self, rank: usize, theirs: &Signature) -> bool {
        let other = theirs.root as usize;
        match theirs.kind {
            _ if other >= self.peers.len() => false,
            CallKind::Receive => self.region.chunks_in_flight(other, rank) == 0,
            _ => self.region.chunks_in_flight(rank, other) >= P2P_SLOTS,
        }
    }

    /// The mismatch, if a rank can never provide what a message or collective of this rank waits for.
    fn deadlock(&self, rank: usize, ctx: &CallCtx) -> Option<CommError> {
        let (calls, theirs) = self.region.published_wait(rank)?;
        let waits = !theirs.kind.is_p2p() || self.is_blocked(rank, &theirs);
        let is_deadlocked = is_deadlocked(self.region.rank as u32, ctx, calls, &theirs) && waits;
        is_deadlocked.then(|| self.mismatch(rank, ctx, theirs))
    }
}

/// Marks the signature of a message in a group.
pub const IN_GROUP: u64 = 1;

/// Whether a rank in call `theirs`, after `calls` collectives, can never provide what this rank
/// (`own`) waits for.
fn is_deadlocked(own: u32, ctx: &CallCtx, calls: u64, theirs: &Signature) -> bool {
    // Otherwise it may be waiting for a third rank.
    let awaits_own = theirs.root == own && theirs.shape != IN_GROUP;
    match (ctx.signature.kind.is_p2p(), theirs.kind.is_p2p()) {
        // It is in a collective that this rank has not reached; otherwise it is only behind.
        (true, false) => calls > ctx.calls,
        (false, true) => calls < ctx.calls && awaits_own,
        (true, true) => {
            theirs.kind == ctx.signature.kind && theirs.kind == CallKind::Receive && awaits_own
        }
        (false, false) => false,
    }
}
