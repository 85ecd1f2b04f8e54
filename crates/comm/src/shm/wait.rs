//! Bounded waits for other ranks: they end with the awaited post or with an error that says why it
//! will not come.

use std::sync::Arc;
use std::time::Duration;

use regatta_wire::clock;

use super::ShmConfig;
use super::abort_record;
use super::arena::Arena;
use super::layout::{P2P_SLOTS, POST_RING};
use super::region::{Activity, Region};
use super::segment::Segment;
use super::wait_table::WaitRecord;
use crate::error::Peer;
use crate::{CallKind, CommError, Result, Signature};

/// Iterations of the initial spin phase, with a CPU per rank and when oversubscribed.
const SPINS: u32 = 300;
const SPINS_OVERSUBSCRIBED: u32 = 20;
/// Duration of the yield phase that follows, before sleeping. It lets the awaited rank run if it
/// shares this CPU.
const YIELD_FOR: Duration = Duration::from_millis(1);
const YIELD_FOR_OVERSUBSCRIBED: Duration = Duration::from_micros(5);
/// Spin iterations between two yields.
const SPINS_PER_YIELD: u32 = 30;
/// Minimum and maximum sleep between fault checks.
pub(super) const SLEEP_MIN: Duration = Duration::from_millis(1);
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(16);

/// A call in progress.
#[derive(Debug, Clone, Copy)]
pub struct CallCtx {
    pub activity: Activity,
    /// The sequence number that errors name.
    pub sequence: u64,
    pub signature: Signature,
    pub digest: u64,
}

/// State of a communicator, shared by its engine and its abort handles.
#[derive(Debug)]
pub struct ShmState {
    pub region: Region,
    pub segment: Arc<Segment>,
    pub peers: Vec<Peer>,
    /// The arena; `None` unless all ranks map it.
    pub arena: Option<Arc<Arena>>,
    /// Rank of each rank in the root communicator: key of its liveness lock and its arena range.
    pub root_ranks: Vec<u32>,
    /// Ranks in this process, which are alive.
    pub same_process: Vec<bool>,
    /// Whether there are more ranks than CPUs.
    pub oversubscribed: bool,
    /// Publishes whom this rank waits for.
    pub wait_record: WaitRecord,
    pub config: ShmConfig,
}

impl ShmState {
    /// Waits for a rank's post and checks that it belongs to the same call.
    #[inline]
    pub fn await_post(&self, rank: usize, seq: u64, ctx: &CallCtx) -> Result {
        if !self.region.has_posted(rank, seq) {
            self.wait(rank, ctx, || self.region.has_posted(rank, seq))?;
        }
        let digest = self.region.digest(rank, seq);
        if digest.is_some() && digest == self.region.digest(self.region.rank, seq) {
            return Ok(());
        }
        Err(self.mismatch_error(rank, ctx))
    }

    /// Waits for a condition that a rank brings about.
    #[inline]
    pub fn wait(&self, rank: usize, ctx: &CallCtx, ready: impl Fn() -> bool) -> Result {
        for _ in 0..if self.oversubscribed { SPINS_OVERSUBSCRIBED } else { SPINS } {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.wait_long(&[rank], ctx, &ready)
    }

    /// Waits for a condition that one of several ranks brings about; `ctx` waits for the first of
    /// them.
    #[cold]
    pub fn wait_long(&self, ranks: &[usize], ctx: &CallCtx, ready: &dyn Fn() -> bool) -> Result {
        let began = clock::now();
        let yield_for = if self.oversubscribed { YIELD_FOR_OVERSUBSCRIBED } else { YIELD_FOR };
        // Only one doorbell can be slept on.
        let max_sleep = if ranks.len() == 1 { SLEEP_MAX } else { SLEEP_MIN };
        let mut sleep = SLEEP_MIN;
        while !ready() {
            let waited = clock::elapsed(began);
            if waited < yield_for {
                std::thread::yield_now();
                let spins = (0..SPINS_PER_YIELD).take_while(|_| !ready());
                spins.for_each(|_| std::hint::spin_loop());
                continue;
            }
            self.wait_record.publish(ranks, waited);
            let failure = ranks.iter().find_map(|rank| self.failure(*rank, ctx, waited));
            // What arrived before the failure is still delivered.
            if let Some(error) = failure.filter(|_| !ready()) {
                return Err(self.publish_or_adopt(error, ctx));
            }
            let first = ranks.first().copied().unwrap_or(self.region.rank);
            self.region
                .wait_doorbell(first, sleep, || ready() || abort_record::has_failed(&self.region));
            sleep = (sleep * 2).min(max_sleep);
        }
        self.wait_record.publish(&[], Duration::ZERO);
        Ok(())
    }

    /// Why the wait for a rank must end.
    pub fn failure(&self, rank: usize, ctx: &CallCtx, waited: Duration) -> Option<CommError> {
        if let Some(error) = self.abort_error(ctx) {
            return Some(error);
        }
        if let Some(why) = self.exit_reason(rank) {
            let (peer, call) = (self.peers[rank].clone(), ctx.signature.to_string());
            return Some(CommError::RankLost { peer, why: why.to_owned(), call });
        }
        (waited >= self.config.desync_after).then(|| self.timeout_error(rank, ctx))
    }

    /// Why a rank is gone, if it is.
    pub fn exit_reason(&self, rank: usize) -> Option<&'static str> {
        if self.region.has_closed(rank) {
            return Some("it closed the communicator");
        }
        let dead = !self.same_process[rank] && !self.segment.is_alive(self.root_ranks[rank]);
        dead.then_some("its process exited")
    }

    /// The communicator's error, if it has failed.
    pub fn abort_error(&self, ctx: &CallCtx) -> Option<CommError> {
        self.abort_error_during(&ctx.signature.to_string())
    }

    /// [`Self::abort_error`] during a named operation.
    pub fn abort_error_during(&self, call: &str) -> Option<CommError> {
        abort_record::read(&self.region, &self.peers, &self.wait_record, call)
    }

    /// Publishes an error to all ranks.
    pub fn publish_error(&self, error: CommError) -> CommError {
        abort_record::publish(&self.region, &error);
        error
    }

    /// Publishes an error, unless another was published first, which then is this rank's error,
    /// too.
    pub fn publish_or_adopt(&self, error: CommError, ctx: &CallCtx) -> CommError {
        match abort_record::publish(&self.region, &error) {
            true => error,
            false => self.abort_error(ctx).unwrap_or(error),
        }
    }

    /// A rank's post, or one before it, belongs to another call than this rank's.
    #[cold]
    pub fn mismatch_error(&self, rank: usize, ctx: &CallCtx) -> CommError {
        let by = self.peers[self.region.rank].clone();
        let peer = &self.peers[rank];
        let why = format!("{peer} made a different call than this rank some calls ago");
        let error = self.first_mismatch(rank, ctx);
        let error = error.unwrap_or(CommError::Aborted { by, why });
        self.publish_or_adopt(error, ctx)
    }

    /// The first of the recent calls in which a rank's signature differs from this rank's.
    fn first_mismatch(&self, rank: usize, ctx: &CallCtx) -> Option<CommError> {
        let calls = ctx.activity.sequence();
        let differs = |call: u64| {
            let called = |rank: usize| self.region.published_call(rank, Activity::Collective(call));
            let (ours, theirs) = (called(self.region.rank)?, called(rank)?);
            let activity = Activity::Collective(call);
            let at = CallCtx { activity, sequence: call, signature: ours, digest: 0 };
            (ours != theirs).then(|| self.mismatch(rank, &at, theirs))
        };
        (calls.saturating_sub(POST_RING - 1)..=calls).find_map(differs)
    }

    pub fn mismatch(&self, rank: usize, ctx: &CallCtx, theirs: Signature) -> CommError {
        CommError::CallMismatch {
            sequence: ctx.sequence,
            ours_by: self.peers[self.region.rank].clone(),
            ours: Box::new(ctx.signature),
            theirs_by: self.peers[rank].clone(),
            theirs: Box::new(theirs),
        }
    }

    /// The rank that a rank's message waits for; `None` if the message can make progress.
    fn p2p_waits_for(&self, rank: usize) -> Option<usize> {
        let activity = self.region.activity(rank);
        let theirs = self.region.published_call(rank, activity)?;
        let other = theirs.root as usize;
        let waits = match (activity, theirs.kind) {
            (Activity::P2p(_), _) if other >= self.peers.len() => false,
            (Activity::P2p(_), CallKind::Receive) => self.region.chunks_in_flight(other, rank) == 0,
            (Activity::P2p(_), _) => self.region.chunks_in_flight(rank, other) >= P2P_SLOTS,
            _ => false,
        };
        waits.then_some(other)
    }

    /// The error of a timeout: a mismatch, or late ranks.
    fn timeout_error(&self, rank: usize, ctx: &CallCtx) -> CommError {
        let others = || (0..self.peers.len()).filter(|other| *other != self.region.rank);
        if let Some(disagree) = others().find_map(|other| self.first_mismatch(other, ctx)) {
            return disagree;
        }
        let activity = self.region.activity(rank);
        let theirs = self.region.published_call(rank, activity);
        let own = self.region.rank as u32;
        let waits = !matches!(activity, Activity::P2p(_)) || self.p2p_waits_for(rank).is_some();
        let is_deadlocked = |theirs: &Signature| is_deadlocked(own, ctx, activity, theirs) && waits;
        if let Some(theirs) = theirs.filter(is_deadlocked) {
            return self.mismatch(rank, ctx, theirs);
        }
        let is_collective = matches!(ctx.activity, Activity::Collective(_));
        let collective = is_collective && !ctx.signature.kind.has_root();
        let sequence = ctx.activity.sequence();
        let has_entered = |other: usize| self.region.activity(other).sequence() >= sequence;
        let missing = |other: &usize| *other == rank || (collective && !has_entered(*other));
        let missing: Vec<usize> = others().filter(missing).collect();
        CommError::Timeout {
            call: ctx.signature.to_string(),
            seconds: self.config.desync_after.as_secs(),
            // Only the root causes, not ranks that are themselves waiting.
            missing: self.wait_record.root_causes(&missing, self.config.desync_after),
        }
    }
}

/// Marks the signature of a message in a group.
pub const IN_GROUP: u64 = 1;

/// Whether a rank in call `theirs` can never provide what this rank (`own`) waits for.
fn is_deadlocked(own: u32, ctx: &CallCtx, activity: Activity, theirs: &Signature) -> bool {
    match (ctx.activity, activity) {
        // It is in a collective that this rank has not reached; otherwise it is only behind.
        (Activity::P2p(ours), Activity::Collective(other)) => other > ours,
        // It may be waiting for a third rank.
        (Activity::Collective(ours), Activity::P2p(other)) => {
            other < ours && theirs.root == own && theirs.shape != IN_GROUP
        }
        (Activity::P2p(_), Activity::P2p(_)) => {
            let both = theirs.kind == ctx.signature.kind && theirs.kind == CallKind::Receive;
            both && theirs.root == own && theirs.shape != IN_GROUP
        }
        _ => false,
    }
}
