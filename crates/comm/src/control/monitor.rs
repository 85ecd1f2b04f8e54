//! [`CommMonitor`]: the interface between the transports of a communicator and the control plane.
//! Transports report what they observe, rank 0 decides, and the decision is one error for all
//! transports of the communicator.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use regatta_model::hash::fnv1a;
use regatta_wire::clock;

use super::call_history::{CallHistory, SYNCHRONOUS_CALLS};
use super::messages::{CommClosed, Fault, MessageCounts, RankInfo, RankStatus, ToRoot};
use super::registry::{Announcement, CommRegistry};
use super::thread::ControlHandle;
use crate::engine::AbortFn;
use crate::error::Peer;
use crate::{CommError, Result, Signature};

/// All ranks of a job, and this rank's connection to its control plane.
pub struct Job {
    /// The global rank.
    pub rank: u32,
    /// All ranks, in order.
    pub members: Arc<[RankInfo]>,
    pub control: ControlHandle,
    pub registry: Arc<CommRegistry>,
}

/// Returns the message counts of the current call.
type CountMessages = Box<dyn Fn() -> MessageCounts + Send + Sync>;

/// The control plane's view of one communicator on this rank, shared by its transports.
pub struct CommMonitor {
    pub(crate) comm_id: u64,
    /// The global ranks of the members, in order.
    pub(crate) members: Vec<u32>,
    job: Arc<Job>,
    history: CallHistory,
    /// Whether anything was announced. The only thing that is read while all is well.
    has_announcement: AtomicBool,
    announced: Mutex<Announced>,
    /// The error that every further call returns.
    error: OnceLock<CommError>,
    count_messages: OnceLock<CountMessages>,
    is_closed: AtomicBool,
}

/// What rank 0 announced, and what this rank waits for.
#[derive(Default)]
struct Announced {
    fault: Option<Fault>,
    /// Ranks that closed the communicator.
    closed: BTreeMap<u32, CommClosed>,
    /// Whether rank 0 found all ranks healthy.
    is_clear: bool,
    /// The waits for global ranks since a time, by an ID.
    waits: BTreeMap<u64, (Instant, Vec<u32>)>,
    last_wait: u64,
}

impl std::fmt::Debug for CommMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommMonitor").field("comm_id", &self.comm_id).finish_non_exhaustive()
    }
}

impl CommMonitor {
    /// Opens a communicator of these global ranks.
    pub(crate) fn open(job: Arc<Job>, comm_id: u64, members: Vec<u32>) -> Arc<Self> {
        Self::open_with(job, comm_id, members, SYNCHRONOUS_CALLS)
    }

    /// A communicator of the same ranks, of which this many calls may be in flight. Needs no
    /// communication, if all ranks do it after the same call.
    pub(crate) fn derive(&self, calls: usize) -> Arc<Self> {
        const DEVICE: u64 = 1 << 33;
        let words = [self.comm_id, self.calls(), DEVICE];
        let comm_id = fnv1a(words.into_iter().flat_map(u64::to_le_bytes));
        Self::open_with(self.job.clone(), comm_id, self.members.clone(), calls)
    }

    fn open_with(job: Arc<Job>, comm_id: u64, members: Vec<u32>, calls: usize) -> Arc<Self> {
        let monitor = Arc::new(Self {
            comm_id,
            members,
            job,
            history: CallHistory::new(calls),
            has_announcement: AtomicBool::new(false),
            announced: Mutex::default(),
            error: OnceLock::new(),
            count_messages: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        });
        monitor.job.registry.open(&monitor);
        monitor
    }

    /// Announces that this rank has left the communicator, after `p2p_sent` messages by receiver, so
    /// no rank waits for it.
    pub(crate) fn close(&self, p2p_sent: Vec<(u32, u64)>) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            self.job.registry.close(self.comm_id);
            let (comm_id, size, calls) = (self.comm_id, self.members.len() as u32, self.calls());
            self.send(ToRoot::Closed(CommClosed { comm_id, size, calls, p2p_sent }));
        }
    }

    /// The function that counts the messages of the current call.
    pub(crate) fn count_messages_with(
        &self,
        count: impl Fn() -> MessageCounts + Send + Sync + 'static,
    ) {
        let _ = self.count_messages.set(Box::new(count));
    }

    fn lock(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, message: ToRoot) {
        self.job.control.send(message);
    }

    /// Records the start of a collective.
    #[inline]
    pub(crate) fn begin(&self, signature: &Signature) {
        self.history.begin(signature);
    }

    /// The number of collectives started.
    pub(crate) fn calls(&self) -> u64 {
        self.history.calls()
    }

    /// The current collective.
    pub(crate) fn current_call(&self) -> String {
        let current = self.history.signature_of(self.calls());
        current.map_or_else(String::new, |signature| signature.to_string())
    }

    /// The status of this rank, but for what it waits for.
    pub(super) fn status(&self) -> RankStatus {
        let count = self.count_messages.get();
        let message_counts = count.map_or_else(MessageCounts::default, |count| count());
        let (calls, recent_calls) = (self.calls(), self.history.recent_calls());
        RankStatus { calls, recent_calls, message_counts, waits: Vec::new() }
    }

    /// Whether there is something to be examined with [`Self::announced_error`]: one load.
    #[inline]
    pub(crate) fn has_announcement(&self) -> bool {
        self.has_announcement.load(Ordering::Acquire)
    }

    /// Returns the error of an earlier call, if any.
    #[inline]
    pub(crate) fn check_not_failed(&self) -> Result {
        match self.has_announcement() {
            true => self.error.get().cloned().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Whether the communicator is known to have failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_announcement() && (self.error.get().is_some() || self.lock().fault.is_some())
    }

    /// A function that aborts the communicator on all ranks.
    pub(crate) fn abort_fn(self: &Arc<Self>) -> AbortFn {
        let monitor = self.clone();
        Arc::new(move |why| {
            let fault = Fault::Aborted { rank: monitor.job.rank, why: why.to_owned() };
            monitor.send(ToRoot::Abort { comm_id: monitor.comm_id, fault: fault.clone() });
            monitor.job.registry.abort(Some(monitor.comm_id), fault);
        })
    }

    /// The error to fail with, if rank 0 announced a fault, or the departure of a rank that the
    /// current call waits for.
    pub(crate) fn announced_error(
        &self,
        call: &dyn Fn() -> String,
        awaits: &dyn Fn(u32, &CommClosed) -> bool,
    ) -> Option<CommError> {
        if !self.has_announcement() {
            return None;
        }
        if let Some(error) = self.error.get() {
            return Some(error.clone());
        }
        let announced = self.lock();
        if let Some(fault) = &announced.fault {
            return Some(self.comm_error(fault, call()));
        }
        let departed = announced.closed.iter().find(|(rank, closed)| awaits(**rank, closed));
        departed.map(|(rank, _)| self.departed(*rank, &call()))
    }

    /// The error if a rank closed the communicator before a call.
    pub(crate) fn departed(&self, rank: u32, call: &str) -> CommError {
        let why = format!("it closed the communicator before {call}");
        CommError::Aborted { by: self.peer(rank), why }
    }

    /// Fails with an error that the other ranks know.
    pub(crate) fn fail(&self, error: CommError) -> CommError {
        let error = self.error.get_or_init(|| error).clone();
        self.has_announcement.store(true, Ordering::Release);
        error
    }

    /// Reports an error to all ranks and fails with it, unless the communicator has failed already.
    pub(crate) fn report_and_fail(&self, error: CommError) -> CommError {
        if let CommError::InvalidCall { .. } = error {
            return error;
        }
        if self.error.get().is_none() {
            let fault = self.fault(&error);
            self.send(ToRoot::Abort { comm_id: self.comm_id, fault });
        }
        self.fail(error)
    }

    /// Fails as [`Self::announced_error`] says. A departure is reported to the others, because this rank
    /// will depart as well.
    pub(crate) fn fail_with_announced(&self, error: CommError) -> CommError {
        match error {
            CommError::Aborted { .. } => self.report_and_fail(error),
            error => self.fail(error),
        }
    }

    pub(super) fn announce(&self, announcement: Announcement) {
        let mut announced = self.lock();
        match announcement {
            Announcement::Fault(fault) => drop(announced.fault.get_or_insert(fault)),
            Announcement::Closed(rank, closed) => drop(announced.closed.insert(rank, closed)),
        }
        self.has_announcement.store(true, Ordering::Release);
    }

    /// Rank 0 found all ranks healthy.
    pub(super) fn clear(&self) {
        self.lock().is_clear = true;
    }

    /// Takes whether rank 0 found all ranks healthy.
    pub(super) fn take_clear(&self) -> bool {
        std::mem::take(&mut self.lock().is_clear)
    }

    /// Publishes a wait under a new ID.
    pub(super) fn add_wait(&self, since: Instant, ranks: Vec<u32>) -> u64 {
        let mut announced = self.lock();
        announced.last_wait += 1;
        let id = announced.last_wait;
        announced.waits.insert(id, (since, ranks));
        id
    }

    pub(super) fn remove_wait(&self, id: u64) {
        self.lock().waits.remove(&id);
    }

    /// The global ranks this rank waits for, and for how long.
    pub(super) fn waits(&self) -> Vec<(u32, Duration)> {
        let now = clock::now();
        let announced = self.lock();
        let waits = announced.waits.values().flat_map(|(since, ranks)| {
            let waited = now.saturating_duration_since(*since);
            ranks.iter().map(move |rank| (*rank, waited))
        });
        waits.collect()
    }

    /// The global rank of this process.
    pub(crate) fn global_rank(&self) -> u32 {
        self.job.rank
    }

    /// The peer with this global rank, as this communicator names it.
    pub(crate) fn peer(&self, global: u32) -> Peer {
        let member = self.members.iter().position(|&m| m == global);
        let host = self.job.members.get(global as usize).map(|m| m.host.clone());
        let host = host.unwrap_or_else(|| "?".to_owned());
        match member {
            Some(rank) => Peer::new(rank as u32, host),
            None => Peer::global(global, host),
        }
    }

    /// The global rank of a peer named in an error.
    fn global_of(&self, peer: &Peer) -> u32 {
        let member = || self.members.get(peer.rank as usize).copied();
        if peer.global { peer.rank } else { member().unwrap_or(u32::MAX) }
    }

    /// The error of a fault, from the view of this rank in a call.
    fn comm_error(&self, fault: &Fault, call: String) -> CommError {
        match fault {
            Fault::Lost { rank, why } => {
                CommError::RankLost { peer: self.peer(*rank), why: why.clone(), call }
            }
            Fault::CallMismatch { sequence, majority, minority } => {
                self.call_mismatch(*sequence, *majority, *minority)
            }
            Fault::Timeout { seconds, missing, .. } => {
                let missing = missing.iter().map(|rank| self.peer(*rank)).collect();
                CommError::Timeout { call, seconds: *seconds, missing }
            }
            Fault::LinkBroken { from, to, why } => {
                let (from, to, why) = (self.peer(*from), self.peer(*to), why.clone());
                CommError::LinkBroken { from, to, why, call }
            }
            Fault::Aborted { rank, why } => {
                CommError::Aborted { by: self.peer(*rank), why: why.clone() }
            }
        }
    }

    /// A rank of the majority names the minority, and vice versa.
    fn call_mismatch(
        &self,
        sequence: u64,
        majority: (u32, Signature),
        minority: (u32, Signature),
    ) -> CommError {
        if majority.1.kind.is_p2p() || minority.1.kind.is_p2p() {
            // Only the two ranks of a message made the calls. If this is one of them, it is named
            // first.
            let swap = minority.0 == self.job.rank;
            let (ours, theirs) = if swap { (minority, majority) } else { (majority, minority) };
            return self.mismatch(sequence, ours, theirs);
        }
        let own = self.history.signature_of(sequence);
        // A rank that has not made the call yet is given the calls of two others.
        let by = if own.is_some() { self.job.rank } else { majority.0 };
        let own = own.unwrap_or(majority.1);
        let theirs = if own == majority.1 { minority } else { majority };
        self.mismatch(sequence, (by, own), theirs)
    }

    /// A mismatch between this rank's call and that of another one.
    pub(crate) fn mismatch(
        &self,
        sequence: u64,
        ours: (u32, Signature),
        theirs: (u32, Signature),
    ) -> CommError {
        CommError::CallMismatch {
            sequence,
            ours_by: self.peer(ours.0),
            ours: Box::new(ours.1),
            theirs_by: self.peer(theirs.0),
            theirs: Box::new(theirs.1),
        }
    }

    /// An error as a fault in terms of global ranks.
    fn fault(&self, error: &CommError) -> Fault {
        let global = |peer: &Peer| self.global_of(peer);
        match error {
            CommError::Timeout { seconds, missing, .. } => Fault::Timeout {
                sequence: self.calls(),
                seconds: *seconds,
                missing: missing.iter().map(global).collect(),
            },
            CommError::RankLost { peer, why, .. } => {
                Fault::Lost { rank: global(peer), why: why.clone() }
            }
            CommError::Aborted { by, why } => Fault::Aborted { rank: global(by), why: why.clone() },
            CommError::LinkBroken { from, to, why, .. } => {
                Fault::LinkBroken { from: global(from), to: global(to), why: why.clone() }
            }
            CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } => {
                Fault::CallMismatch {
                    sequence: *sequence,
                    majority: (global(ours_by), **ours),
                    minority: (global(theirs_by), **theirs),
                }
            }
            _ => Fault::Aborted { rank: self.job.rank, why: error.to_string() },
        }
    }
}
