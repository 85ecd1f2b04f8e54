//! All data connections of this process to other ranks, over TCP or libfabric, shared by its
//! communicators. Any thread that waits makes progress for all of them. One waiting thread polls the
//! sockets; the others wait on a condition variable that it signals.

mod comm_table;
mod incoming;
mod outgoing;
mod progress;
mod reader;
mod recv_buffer;
mod tcp_info;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::frame::Header;
use crate::libfabric::{CANCEL_TIMEOUT, CANCEL_TIMEOUT_RANK_LOST, FabricTransport};
use crate::transport::RequestId;
pub use comm_table::{CommTable, ProtocolError};
use incoming::Incoming;
pub use incoming::check_match;
use outgoing::Outgoing;
pub use recv_buffer::PostedRecv;
use tcp_info::unacked_for;

/// The direction of a link, seen from this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkDirection {
    /// To the peer.
    Send,
    /// From the peer.
    Recv,
}

/// Bytes buffered in a peer's unexpected-message queue before other peers are read first.
const UNEXPECTED_LIMIT: usize = 256 << 20;

/// All connections.
#[derive(Default)]
pub struct DataPlane {
    outgoing: BTreeMap<u32, Outgoing>,
    incoming: BTreeMap<u32, Incoming>,
    /// Broken links and the reason.
    pub broken: BTreeMap<(u32, LinkDirection), String>,
    pub comms: CommTable,
    /// Replaces the data connections if the ranks agreed on libfabric.
    pub fabric: Option<FabricTransport>,
    has_poller: bool,
    waiters: usize,
    last_request: u64,
    unexpected_limit: usize,
    /// Consecutive rounds in which peers over the limit were not read, because others progressed.
    deferrals: u32,
}

/// The locked data plane.
type PlaneGuard<'a> = MutexGuard<'a, DataPlane>;

/// A data plane shared by several threads.
pub struct SharedDataPlane {
    plane: Mutex<DataPlane>,
    changed: Condvar,
    wake: OwnedFd,
}

impl DataPlane {
    /// A data plane that defers reading from a peer with `unexpected_limit` bytes of unexpected
    /// messages while other peers make progress.
    pub fn new(unexpected_limit: usize) -> Self {
        Self { unexpected_limit, ..Self::default() }
    }

    pub fn connections_to(&self, rank: u32) -> usize {
        self.outgoing.get(&rank).map_or(0, Outgoing::connections)
    }

    pub fn add_outgoing(&mut self, rank: u32, stream: Arc<TcpStream>) {
        self.outgoing.entry(rank).or_default().add(stream);
    }

    /// Reuses a connection that the peer opened for messages to it. A bidirectional connection needs
    /// fewer packets because acknowledgements piggyback on data. Returns the number of connections.
    pub fn adopt_incoming(&mut self, rank: u32) -> usize {
        let theirs = self.incoming.get(&rank).and_then(Incoming::peer_initiated);
        if let Some(stream) = theirs.filter(|_| self.connections_to(rank) == 0) {
            self.add_outgoing(rank, stream);
        }
        self.connections_to(rank)
    }

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }

    /// Posts a send and writes as much of it as the socket accepts.
    pub fn send(&mut self, to: u32, header: Header, bytes: *const [u8]) -> RequestId {
        let request = self.next_request();
        if let Some(fabric) = &mut self.fabric {
            fabric.send(to, header, request, bytes.cast(), &mut self.comms);
            return request;
        }
        let outgoing = self.outgoing.entry(to).or_default();
        outgoing.push(header, request, bytes.cast(), bytes.len());
        if let Err(error) = outgoing.write(&mut self.comms) {
            self.mark_broken(to, LinkDirection::Send, std::io::Error::from(error).to_string());
        }
        request
    }

    /// Posts a receive and assigns its request ID.
    pub fn receive(&mut self, from: u32, mut posted: PostedRecv) -> RequestId {
        posted.request = self.next_request();
        if let Some(fabric) = &mut self.fabric {
            fabric.receive(from, posted, &mut self.comms);
            return posted.request;
        }
        self.incoming.entry(from).or_default().post(posted, &mut self.comms);
        posted.request
    }

    /// Posted operations stay pending; `TcpTransport::progress` reports the broken link.
    fn mark_broken(&mut self, rank: u32, direction: LinkDirection, why: String) {
        self.comms.progressed = true;
        self.broken.entry((rank, direction)).or_insert(why);
        match direction {
            LinkDirection::Send => drop(self.outgoing.remove(&rank)),
            LinkDirection::Recv => {
                if let Some(incoming) = self.incoming.get_mut(&rank) {
                    incoming.close_all();
                }
            }
        }
    }

    /// The time since the peer's kernel last acknowledged data, if data is outstanding.
    pub fn unacked_for(&self, rank: u32) -> Option<Duration> {
        let out = self.outgoing.get(&rank).into_iter().flat_map(Outgoing::streams);
        let into = self.incoming.get(&rank).into_iter().flat_map(Incoming::streams);
        out.chain(into).filter_map(|stream| unacked_for(stream)).max()
    }

    /// Closes all connections.
    pub fn close_all(&mut self) {
        self.outgoing.clear();
        self.incoming.clear();
    }

    /// Moves the completed requests of a communicator to `done`.
    pub fn take_completed(&mut self, comm_id: u64, done: &mut Vec<RequestId>) {
        done.append(&mut self.comms.take_completed(comm_id));
    }

    /// The sockets to poll, with the events of interest.
    fn poll_set(&self) -> Vec<(Arc<TcpStream>, PollFlags)> {
        let out = self.outgoing.values().flat_map(Outgoing::blocked);
        let into = self.incoming.values().flat_map(Incoming::awaited);
        let out = out.map(|stream| (stream.clone(), PollFlags::OUT));
        out.chain(into.map(|stream| (stream.clone(), PollFlags::IN))).collect()
    }

    /// Releases all user memory of a communicator.
    pub fn cancel(&mut self, comm_id: u64, is_rank_lost: bool) {
        if let Some(fabric) = &mut self.fabric {
            let timeout = if is_rank_lost { CANCEL_TIMEOUT_RANK_LOST } else { CANCEL_TIMEOUT };
            fabric.cancel(comm_id, timeout, &mut self.comms);
        }
        self.outgoing.values_mut().for_each(|outgoing| outgoing.cancel(comm_id));
        self.incoming.values_mut().for_each(|incoming| incoming.cancel(comm_id));
        self.comms.take_completed(comm_id);
    }

    /// Closes a communicator. Messages that still arrive for it are discarded.
    pub fn close(&mut self, comm_id: u64, is_rank_lost: bool) {
        self.cancel(comm_id, is_rank_lost);
        if let Some(fabric) = &mut self.fabric {
            fabric.close(comm_id, &mut self.comms);
        }
        self.incoming.values_mut().for_each(|incoming| incoming.close(comm_id));
        self.comms.close(comm_id);
    }
}

impl SharedDataPlane {
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let plane = Mutex::new(DataPlane::new(UNEXPECTED_LIMIT));
        Ok(Self { plane, changed: Condvar::new(), wake })
    }

    pub fn lock(&self) -> PlaneGuard<'_> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that a peer opened.
    pub fn add_incoming(&self, rank: u32, index: u8, stream: TcpStream) {
        let mut plane = self.lock();
        plane.incoming.entry(rank).or_default().add(index.into(), stream);
        self.wake_poller(&plane);
    }

    /// Adds the first connection this rank opened to a peer. If the peer opened one as well, both
    /// sides should use the same one; `use_theirs` selects the peer's. The choices may differ,
    /// because all messages of a rank arrive on the connection that it chose.
    pub fn add_dialled(&self, rank: u32, stream: TcpStream, use_theirs: bool) {
        let mut plane = self.lock();
        let stream = Arc::new(stream);
        plane.incoming.entry(rank).or_default().add_local(stream.clone());
        if !use_theirs || plane.adopt_incoming(rank) == 0 {
            plane.add_outgoing(rank, stream);
        }
        self.wake_poller(&plane);
    }

    /// Wakes all waiting threads.
    pub fn wake_all(&self) {
        let plane = self.lock();
        self.wake_poller(&plane);
        self.changed.notify_all();
    }

    /// Makes the polling thread rebuild its poll set.
    pub fn wake_poller(&self, plane: &DataPlane) {
        if plane.has_poller {
            // Fails only if the counter is saturated, in which case the poller wakes anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Wakes waiting threads if operations of other communicators completed.
    pub fn notify_waiters(&self, plane: &mut DataPlane) {
        if std::mem::take(&mut plane.comms.progressed) && plane.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Releases the lock briefly while spinning.
    pub fn yield_lock<'a>(&'a self, mut plane: PlaneGuard<'a>) -> PlaneGuard<'a> {
        self.notify_waiters(&mut plane);
        drop(plane);
        std::hint::spin_loop();
        self.lock()
    }

    /// Sleeps until something may have changed, at most `limit`.
    pub fn wait<'a>(&'a self, mut plane: PlaneGuard<'a>, limit: Duration) -> PlaneGuard<'a> {
        self.notify_waiters(&mut plane);
        if plane.has_poller {
            plane.waiters += 1;
            let slept = self.changed.wait_timeout(plane, limit);
            let mut plane = slept.unwrap_or_else(PoisonError::into_inner).0;
            plane.waiters -= 1;
            return plane;
        }
        plane.has_poller = true;
        let streams = plane.poll_set();
        let hint = plane.fabric.as_mut().map(FabricTransport::sleep_hint);
        drop(plane);
        let limit = hint.map_or(limit, |hint| limit.min(hint.limit));
        // SAFETY: the completion queue stays open while a thread waits for messages.
        let fabric = hint.and_then(|hint| Some(unsafe { BorrowedFd::borrow_raw(hint.fd?) }));
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(streams.iter().map(|(stream, flags)| PollFd::new(stream, *flags)));
        polled.extend(fabric.as_ref().map(|fabric| PollFd::new(fabric, PollFlags::IN)));
        let (tv_sec, tv_nsec) = (limit.as_secs() as i64, i64::from(limit.subsec_nanos()));
        let timeout = Timespec { tv_sec, tv_nsec };
        if limit.is_zero() {
            std::thread::yield_now();
        }
        // The caller checks the clock, whether or not the poll was interrupted.
        let _ = poll(&mut polled, Some(&timeout));
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        let mut plane = self.lock();
        plane.has_poller = false;
        // Another waiting thread may have to take over polling.
        if plane.waiters > 0 {
            self.changed.notify_all();
        }
        plane
    }
}
