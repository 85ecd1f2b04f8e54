//! Progress of an endpoint. Two locks: that of the state is held briefly; that of the endpoint also while the
//! provider copies data, so that calls of the host program only try it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::connection::{Closed, Step};
use super::io::{Event, Io, Item};
use super::liveness;
use super::state::State;
use crate::atexit_guard::enter;
use crate::shm_cleanup::remove_stale_segments;

/// How long the thread of an endpoint sleeps at most without requests.
const IDLE_SLEEP: Duration = Duration::from_millis(500);
/// Polls without completions after which the thread yields, and after which it sleeps between polls.
const SPINS: u32 = 200;
const YIELDS: u32 = 2000;
const POLL_SLEEP: Duration = Duration::from_micros(20);

/// The endpoint and its connections.
pub struct Engine {
    state: Mutex<State>,
    pub(super) io: Mutex<Io>,
    /// Requests for the thread, or the end of it.
    bulk: Condvar,
    is_stopped: AtomicBool,
    progress_count: AtomicU64,
}

impl Engine {
    pub fn new(io: Io) -> Self {
        Self {
            state: Mutex::default(),
            io: Mutex::new(io),
            bulk: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            progress_count: AtomicU64::new(0),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint, once no other thread uses it.
    pub fn io(&self) -> MutexGuard<'_, Io> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of [`Self::progress`] that the provider has returned from.
    pub fn progress_count(&self) -> u64 {
        self.progress_count.load(Ordering::Relaxed)
    }

    /// Makes progress without blocking, unless another thread does.
    pub fn try_progress(&self) {
        if let Some(mut io) = self.try_io() {
            self.progress(&mut io);
        }
    }

    /// Posts what requests want, unless another thread uses the endpoint: its next progress does then. Polling may
    /// take a system call, which the host program's test of the request makes up for.
    pub fn try_post(&self) {
        if let Some(mut io) = self.try_io()
            && self.state().failure.is_none()
        {
            self.post(&mut io);
        }
    }

    /// The endpoint, unless another thread uses it.
    fn try_io(&self) -> Option<MutexGuard<'_, Io>> {
        match self.io.try_lock() {
            Ok(io) => Some(io),
            Err(TryLockError::Poisoned(io)) => Some(io.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Posts what requests want, and handles completions. Returns whether there was anything to do.
    pub fn progress(&self, io: &mut Io) -> bool {
        if self.state().failure.is_some() {
            return false;
        }
        let has_posted = self.post(io);
        let polled =
            io.poll_pending_connections().and_then(|()| io.poll()).and_then(|has_completed| {
                io.post_control_recvs()?;
                Ok(has_completed)
            });
        self.progress_count.fetch_add(1, Ordering::Relaxed);
        if !io.events.is_empty() {
            let mut state = self.state();
            io.events.drain(..).for_each(|(connection, event)| state.apply(connection, event));
        }
        // Also under steady traffic, which could hide that a peer of another connection is lost.
        self.check_peers(io, Instant::now());
        match polled {
            Ok(has_completed) => has_posted || has_completed,
            Err(why) => {
                self.fail(io, why);
                false
            }
        }
    }

    /// Posts what requests want, as far as the provider accepts it. Returns whether it accepted anything.
    fn post(&self, io: &mut Io) -> bool {
        let mut items = std::mem::take(&mut io.items);
        self.state().take_items(&mut items);
        let (mut at, mut has_posted, mut refused) = (0, false, Vec::new());
        while let Some(first) = items.get(at) {
            let (connection, slot) = (first.connection, first.slot);
            let is_same = |item: &&Item| (item.connection, item.slot) == (connection, slot);
            let own = items[at..].iter().take_while(is_same);
            at += own.clone().count();
            let mut next = Step::Wait;
            let is_behind = refused.iter().any(|(id, _)| *id == connection);
            for item in own {
                match if is_behind { Ok(false) } else { io.post(item) } {
                    Ok(true) => has_posted = true,
                    Ok(false) => {
                        next = item.step;
                        break;
                    }
                    Err(why) => {
                        self.state().apply(connection, Event::Failed(why));
                        // What follows must not be taken for it. It is dropped with the connection.
                        next = item.step;
                        break;
                    }
                }
            }
            self.state().set_step(connection, slot, next);
            if next != Step::Wait {
                refused.push((connection, slot));
            }
        }
        if !refused.is_empty() {
            self.state().try_again(refused);
        }
        items.clear();
        io.items = items;
        has_posted
    }

    /// Looks for peers that have ended.
    fn check_peers(&self, io: &mut Io, now: Instant) {
        let Some(readable) = io.liveness.check(now) else { return };
        // An endpoint without posted messages ends without a completion.
        if let Err(why) = io.poll_connections() {
            self.fail(io, why);
        }
        let mut state = self.state();
        for id in readable {
            let Some(peer) = state.connections.get(&id).and_then(|one| one.peer.as_ref()) else {
                continue;
            };
            let ended = liveness::has_ended(&peer.stream);
            if matches!(ended, Ok(false)) {
                continue;
            }
            io.liveness.forget(&peer.stream);
            // Its shared memory stays behind if it was killed. Of another PID namespace, it may still run.
            if peer.is_visible {
                remove_stale_segments(std::slice::from_ref(&peer.fabric_address));
            }
            match ended {
                Ok(_) => state.closed(id, Closed::Control),
                Err(error) => {
                    let why = format!("the connection is lost: {error}");
                    state.apply(id, Event::Failed(why));
                }
            }
        }
        state.check_closed();
    }

    /// Gives up the endpoint with all of its connections.
    pub fn fail(&self, io: &mut Io, why: String) {
        let mut state = self.state();
        if state.failure.is_none() {
            state.failure = Some(why);
            drop(state);
            io.give_up();
        }
    }

    /// Wakes the thread of the endpoint.
    pub fn wake(&self) {
        self.bulk.notify_one();
    }

    /// Ends the thread of the endpoint.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Under the lock of the state, or the thread could miss it.
        let _state = self.state();
        self.bulk.notify_all();
    }

    /// Makes progress while requests with many bytes are in flight.
    pub fn run(&self) {
        let mut idle = 0;
        loop {
            let state = self.state();
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            if !state.has_bulk() {
                let slept = self.bulk.wait_timeout(state, IDLE_SLEEP);
                drop(slept.unwrap_or_else(PoisonError::into_inner));
                idle = 0;
                continue;
            }
            drop(state);
            let Some(_guard) = enter() else { return };
            idle = if self.progress(&mut self.io()) { 0 } else { idle + 1 };
            match idle {
                // Other threads may wait for the endpoint.
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(POLL_SLEEP),
            }
        }
    }
}
