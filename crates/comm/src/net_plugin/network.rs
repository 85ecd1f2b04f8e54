//! A net plug-in as a [`Network`]. Each peer has a lock of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::loopback::Loopback;
use super::peer::Peer;
use crate::locks::{lock, try_lock};
use crate::network::{
    LinkDirection, Network, Report, SharedState, SleepSet, UserRecv, UserSend, cancel_deadline,
};

/// Time for the last sends to complete.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without progress in which the thread only yields.
const YIELD_TIME: Duration = Duration::from_micros(40);

/// The range of the backoff: the interface has nothing to sleep on.
const MIN_SLEEP: Duration = Duration::from_micros(10);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Time without progress after which large unexpected messages are fetched.
const FETCH_AFTER: Duration = Duration::from_millis(2);

/// Polls after which connections of all ranks are accepted, not only of those that are received from: a
/// rank that is not received from yet may be blocked in a send.
const ACCEPT_INTERVAL: u32 = 16;

/// The links to all ranks.
pub struct PluginNetwork {
    shared: Arc<SharedState>,
    /// This rank.
    own: u32,
    loopback: Mutex<Loopback>,
    /// By rank; none for this rank, and after the shutdown.
    peers: Vec<Mutex<Option<Peer>>>,
    polls: AtomicU32,
    /// The time of the last progress or request, in microseconds since `start`.
    active: AtomicU64,
    start: Instant,
}

impl PluginNetwork {
    pub fn new(own: u32, peers: Vec<Option<Peer>>, shared: Arc<SharedState>) -> Self {
        let (loopback, peers) = (Mutex::default(), peers.into_iter().map(Mutex::new).collect());
        let (polls, active, start) = (AtomicU32::new(0), AtomicU64::new(0), clock::now());
        Self { shared, own, loopback, peers, polls, active, start }
    }

    fn set_active(&self) {
        let now = clock::elapsed(self.start).as_micros() as u64;
        self.active.store(now, Ordering::Relaxed);
    }

    /// Runs `work` on the messages of this rank to itself and records what happened.
    fn with_loopback(&self, work: impl FnOnce(&mut Loopback, &mut Report)) {
        let mut loopback = lock(&self.loopback);
        let mut report = Report::default();
        work(&mut loopback, &mut report);
        self.shared.record(report);
    }

    fn lock(&self, rank: usize) -> Option<MutexGuard<'_, Option<Peer>>> {
        Some(lock(self.peers.get(rank)?))
    }

    /// Runs `work` on the links to a rank and records what happened.
    fn with<R>(&self, rank: usize, work: impl FnOnce(&mut Peer, &mut Report) -> R) -> Option<R> {
        let mut peer = self.lock(rank)?;
        Some(self.recorded(peer.as_mut()?, work))
    }

    fn recorded<R>(&self, peer: &mut Peer, work: impl FnOnce(&mut Peer, &mut Report) -> R) -> R {
        let mut report = Report::default();
        let result = work(peer, &mut report);
        // Under the lock of the peer, before another thread may cancel the communicator of a completed
        // request.
        self.shared.record(report);
        result
    }

    /// Whether a condition holds for all ranks.
    fn all(&self, mut condition: impl FnMut(&mut Peer, &mut Report) -> bool) -> bool {
        let mut all = true;
        for rank in 0..self.peers.len() {
            all &= self.with(rank, &mut condition).unwrap_or(true);
        }
        all
    }

    /// Makes progress on one rank, unless another thread does.
    fn try_progress(&self, peer: &Mutex<Option<Peer>>, accept: bool) -> bool {
        let Some(mut peer) = try_lock(peer) else { return false };
        let progress =
            |peer: &mut Peer| self.recorded(peer, |peer, report| peer.progress(accept, report));
        peer.as_mut().is_some_and(progress)
    }

    /// Sends a first message to the next rank and receives that of the previous one, so that a plug-in
    /// that does not work at all is noticed here. Fails after the timeout with the rank that is missing.
    pub fn check_ring(&self, timeout: Duration) -> Result<(), (u32, String)> {
        let (own, ranks) = (self.own, self.peers.len() as u32);
        let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
        let until = clock::now() + timeout;
        self.with(next as usize, |peer, _| peer.greet());
        loop {
            self.progress_all(true);
            let is_sent =
                self.with(next as usize, |peer, _| peer.outgoing.is_idle()).unwrap_or(true);
            let has_received = |peer: &mut Peer, _: &mut Report| peer.incoming.has_received;
            let is_received = self.with(previous as usize, has_received).unwrap_or(true);
            let broken =
                self.shared.lock().broken.iter().next().map(|(at, why)| (*at, why.clone()));
            match (broken, is_sent, is_received) {
                (Some(((rank, direction), why)), ..) => {
                    let towards = if direction == LinkDirection::Send { "to" } else { "from" };
                    return Err((rank, format!("the connection {towards} it failed: {why}")));
                }
                (None, true, true) => return Ok(()),
                (None, is_sent, _) if clock::now() >= until => {
                    let (rank, towards) = if is_sent { (previous, "from") } else { (next, "to") };
                    let seconds = timeout.as_secs();
                    return Err((rank, format!("no message {towards} it within {seconds} s")));
                }
                _ => std::thread::sleep(MIN_SLEEP),
            }
        }
    }

    fn progress_all(&self, accept: bool) {
        let mut moved = false;
        for peer in &self.peers {
            moved |= self.try_progress(peer, accept);
        }
        if moved {
            self.set_active();
        }
    }
}

impl Network for PluginNetwork {
    fn send(&self, to: u32, message: UserSend) {
        if to == self.own {
            return self.with_loopback(|own, report| own.send(message, &self.shared, report));
        }
        self.with(to as usize, |peer, report| peer.send(message, report));
        self.set_active();
        self.shared.rebuild_poll_set();
    }

    fn receive(&self, from: u32, recv: UserRecv) {
        if from == self.own {
            return self.with_loopback(|own, report| own.receive(recv, report));
        }
        self.with(from as usize, |peer, report| peer.receive(recv, report));
        self.set_active();
        self.shared.rebuild_poll_set();
    }

    fn progress(&self) {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        self.progress_all(polls.is_multiple_of(ACCEPT_INTERVAL));
    }

    fn sleep_set(&self, limit: Duration) -> SleepSet {
        let active = Duration::from_micros(self.active.load(Ordering::Relaxed));
        let idle = clock::elapsed(self.start).saturating_sub(active);
        if idle >= FETCH_AFTER {
            self.all(|peer, report| {
                peer.fetch_unexpected(report);
                true
            });
        }
        // A wait becomes longer by a quarter at most.
        let backoff = match idle < YIELD_TIME {
            true => Duration::ZERO,
            false => (idle / 4).clamp(MIN_SLEEP, MAX_SLEEP),
        };
        SleepSet { sockets: Vec::new(), fd: None, limit: limit.min(backoff) }
    }

    fn cancel(&self, comm_id: u64, is_rank_lost: bool) {
        let until = cancel_deadline(is_rank_lost);
        self.with_loopback(|own, _| own.queue.cancel(comm_id));
        self.all(|peer, report| {
            peer.cancel(comm_id, report);
            true
        });
        loop {
            let expired = clock::now() >= until;
            if self.all(|peer, report| peer.is_released(comm_id, expired, report)) {
                return;
            }
            self.progress();
            std::thread::sleep(MIN_SLEEP);
        }
    }

    fn close(&self, comm_id: u64) {
        self.with_loopback(|own, _| drop(own.queue.close(comm_id)));
        self.all(|peer, report| {
            peer.close(comm_id, report);
            true
        });
    }

    fn shutdown(&self) {
        let until = clock::now() + SHUTDOWN_TIMEOUT;
        while !self.all(|peer, _| peer.outgoing.is_idle()) && clock::now() < until {
            self.progress();
            std::thread::sleep(MIN_SLEEP);
        }
        for rank in 0..self.peers.len() {
            self.lock(rank).and_then(|mut peer| peer.take());
        }
    }
}
