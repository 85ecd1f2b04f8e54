//! The state shared by all communicators of a process. Its lock is held briefly, never while data
//! moves. One of the threads that wait polls the network; the others wait on a condition variable.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{CommTable, Network, SleepSet};
use crate::matching::{CommStatus, ProtocolError};
use crate::transport::RequestId;

/// The direction of a link, seen from this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkDirection {
    /// To the peer.
    Send,
    /// From the peer.
    Recv,
}

/// The state under the lock.
#[derive(Default)]
pub struct NetworkState {
    /// Broken links and the reason.
    pub broken: BTreeMap<(u32, LinkDirection), String>,
    pub comms: CommTable,
    last_request: u64,
    has_poller: bool,
    /// Whether the polling thread omits connections because other threads were using them.
    poller_incomplete: bool,
    waiters: usize,
}

impl NetworkState {
    pub fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }
}

type StateGuard<'a> = MutexGuard<'a, NetworkState>;

/// The shared state and those who wait for it to change.
pub struct SharedState {
    state: Mutex<NetworkState>,
    changed: Condvar,
    wake: OwnedFd,
}

/// What a network has done, to be recorded at once.
#[derive(Default)]
pub struct Report {
    pub completed: Vec<(u64, RequestId)>,
    /// Bytes sent or received, by communicator.
    pub moved: Vec<(u64, usize)>,
    pub errors: Vec<(u64, ProtocolError)>,
    pub broken: Vec<(u32, LinkDirection, String)>,
}

impl Report {
    pub fn add_moved(&mut self, comm_id: u64, bytes: usize) {
        match self.moved.last_mut() {
            Some((last, moved)) if *last == comm_id => *moved += bytes,
            _ => self.moved.push((comm_id, bytes)),
        }
    }

    pub fn add_error(&mut self, comm_id: u64, error: Option<ProtocolError>) {
        self.errors.extend(error.map(|error| (comm_id, error)));
    }

    fn is_empty(&self) -> bool {
        let Self { completed, moved, errors, broken } = self;
        completed.is_empty() && moved.is_empty() && errors.is_empty() && broken.is_empty()
    }
}

impl SharedState {
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), changed: Condvar::new(), wake })
    }

    pub fn lock(&self) -> StateGuard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a communicator, for matching.
    pub fn comm_status(&self, comm_id: u64) -> CommStatus {
        self.lock().comms.status(comm_id)
    }

    /// Records what a network has done and wakes the threads that sleep until then. Posted operations
    /// on a broken link stay pending; `progress` of their communicators reports the link.
    pub fn record(&self, report: Report) {
        if report.is_empty() {
            return;
        }
        let mut state = self.lock();
        let mut wake = !report.broken.is_empty();
        // A message that was being sent when its communicator was closed has no request any more.
        let open = &mut state.comms.open;
        for (comm_id, bytes) in report.moved {
            if let Some(comm) = open.get_mut(&comm_id) {
                comm.bytes_moved += bytes as u64;
            }
        }
        for (comm_id, request) in report.completed {
            if let Some(comm) = open.get_mut(&comm_id) {
                comm.completed.push(request);
                wake |= comm.sleeping;
            }
        }
        for (comm_id, error) in report.errors {
            if let Some(comm) = open.get_mut(&comm_id) {
                comm.protocol_error.get_or_insert(error);
                wake |= comm.sleeping;
            }
        }
        for (rank, direction, why) in report.broken {
            state.broken.entry((rank, direction)).or_insert(why);
        }
        if wake {
            self.wake_sleeping(&state);
        }
    }

    /// Wakes all waiting threads.
    pub fn wake_all(&self) {
        self.wake_sleeping(&self.lock());
    }

    fn wake_sleeping(&self, state: &NetworkState) {
        self.wake_poller(state);
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Makes the polling thread rebuild its poll set.
    pub fn rebuild_poll_set(&self) {
        self.wake_poller(&self.lock());
    }

    fn wake_poller(&self, state: &NetworkState) {
        if state.has_poller {
            // Fails only if the counter is saturated, in which case the poller wakes anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// This thread stops using connections that the polling thread may have omitted.
    pub fn hand_over(&self, state: &mut NetworkState) {
        if std::mem::take(&mut state.poller_incomplete) {
            self.wake_poller(state);
        }
    }

    /// Called by a network that omits a connection from its [`SleepSet`], because another thread uses
    /// it. That thread will call [`Self::hand_over`].
    pub fn omit_from_poll(&self) {
        self.lock().poller_incomplete = true;
    }

    /// Sleeps until something may have changed for a communicator, at most `limit`.
    pub fn wait<'a>(
        &'a self,
        mut state: StateGuard<'a>,
        comm_id: u64,
        network: &dyn Network,
        limit: Duration,
    ) -> StateGuard<'a> {
        self.hand_over(&mut state);
        state.comms.get(comm_id).sleeping = true;
        let mut state = match state.has_poller {
            true => {
                state.waiters += 1;
                let slept = self.changed.wait_timeout(state, limit);
                let mut state = slept.unwrap_or_else(PoisonError::into_inner).0;
                state.waiters -= 1;
                state
            }
            false => {
                state.has_poller = true;
                drop(state);
                self.poll(&network.sleep_set(limit));
                let mut state = self.lock();
                state.has_poller = false;
                // Another waiting thread may have to take over polling.
                if state.waiters > 0 {
                    self.changed.notify_all();
                }
                state
            }
        };
        state.comms.get(comm_id).sleeping = false;
        state
    }

    fn poll(&self, SleepSet { sockets, fd, limit }: &SleepSet) {
        // SAFETY: the network keeps its descriptor open while a thread waits for messages.
        let fd = fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(sockets.iter().map(|(stream, flags)| PollFd::new(stream, *flags)));
        polled.extend(fd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let (tv_sec, tv_nsec) = (limit.as_secs() as i64, i64::from(limit.subsec_nanos()));
        if limit.is_zero() {
            std::thread::yield_now();
        }
        // The caller checks the clock, whether or not the poll was interrupted.
        let _ = poll(&mut polled, Some(&Timespec { tv_sec, tv_nsec }));
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a message in progress is sent after its communicator is closed.
    #[test]
    fn late_completions_do_not_reopen_a_closed_communicator() {
        let shared = SharedState::new().unwrap();
        let mut state = shared.lock();
        state.has_poller = true;
        state.comms.get(7).calls = 3;
        state.comms.close(7);
        state.comms.get(8).sleeping = true;
        drop(state);
        let wakes = |comm_id: u64| {
            let completed = vec![(comm_id, RequestId(1))];
            let errors = vec![(comm_id, ProtocolError::CallMismatch { call: 1 })];
            let reports =
                [Report { completed, ..Report::default() }, Report { errors, ..Report::default() }];
            reports.map(|report| {
                shared.record(report);
                rustix::io::read(&shared.wake, &mut [0u8; 8]).is_ok()
            })
        };
        assert_eq!([wakes(7), wakes(8)], [[false; 2], [true; 2]]);
        assert_eq!(shared.comm_status(7), CommStatus::Closed);
    }
}
