//! The data connections of this process to other ranks, shared by its communicators. Sending to a
//! rank, receiving from it and matching its messages have a lock each, so that threads move messages
//! of different ranks at the same time.
//!
//! Lock order: connections of a rank, match queue of a rank, shared state.

mod incoming;
mod outgoing;
mod reader;
mod tcp_info;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::event::PollFlags;

use super::dialler::Dialler;
use crate::locks::{lock, try_lock};
use crate::matching::{MatchQueue, MatchResult};
use crate::network::{
    LinkDirection, Network, Report, SharedState, SleepSet, UserBuffer, UserRecv, UserSend,
};
use incoming::{Incoming, LOCAL_CONN, ReadCtx, conn_index};
use outgoing::Outgoing;
use tcp_info::unacked_for;

/// Bytes buffered in a peer's unexpected-message queue before other peers are read first.
const UNEXPECTED_LIMIT: u64 = 256 << 20;

/// Consecutive rounds for which peers over the unexpected-message limit may be deferred.
const MAX_DEFERRALS: u32 = 64;

/// The match queue of a peer. The payload of an unexpected message is buffered as it arrives.
type PeerQueue = MatchQueue<UserBuffer, Vec<u8>>;

/// The connections to and from a rank.
#[derive(Default)]
struct PeerSockets {
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
    queue: Mutex<PeerQueue>,
    /// All open connections.
    streams: Mutex<Vec<Arc<TcpStream>>>,
}

type PeerTable = BTreeMap<u32, Arc<PeerSockets>>;

/// All data connections.
pub struct Sockets {
    pub shared: Arc<SharedState>,
    /// Opens connections, once all ranks are known.
    pub dialler: OnceLock<Dialler>,
    /// Replaced as a whole, so that no lock is held while data moves.
    peers: Mutex<Arc<PeerTable>>,
    /// Reading from a peer with this many bytes of unexpected messages is deferred while other peers
    /// make progress.
    unexpected_limit: u64,
    /// Consecutive rounds in which peers over the limit were not read, because others progressed.
    deferrals: AtomicU32,
}

impl Sockets {
    pub fn new(shared: Arc<SharedState>) -> Self {
        let (dialler, peers, deferrals) = (OnceLock::new(), Mutex::default(), AtomicU32::new(0));
        Self { shared, dialler, peers, unexpected_limit: UNEXPECTED_LIMIT, deferrals }
    }

    fn peer(&self, rank: u32) -> Arc<PeerSockets> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(&rank) {
            return peer.clone();
        }
        Arc::make_mut(&mut peers).entry(rank).or_default().clone()
    }

    /// Every rank with connections or posted receives.
    fn all(&self) -> Arc<PeerTable> {
        lock(&self.peers).clone()
    }

    pub fn connections_to(&self, rank: u32) -> usize {
        lock(&self.peer(rank).outgoing).connections()
    }

    fn add(&self, rank: u32, stream: TcpStream) -> (Arc<PeerSockets>, Arc<TcpStream>) {
        let (peer, stream) = (self.peer(rank), Arc::new(stream));
        lock(&peer.streams).push(stream.clone());
        (peer, stream)
    }

    /// Adds a further connection for messages to a rank.
    pub fn add_outgoing(&self, rank: u32, stream: TcpStream) {
        let (peer, stream) = self.add(rank, stream);
        lock(&peer.outgoing).add(stream);
    }

    /// Adds a connection that a peer opened.
    pub fn add_incoming(&self, rank: u32, index: u8, stream: TcpStream) {
        let (peer, stream) = self.add(rank, stream);
        lock(&peer.incoming).add(conn_index(index.into(), 0), stream);
        self.shared.rebuild_poll_set();
    }

    /// Adds the first connection this rank opened to a peer. If the peer opened one as well, both
    /// sides should use the same one; `use_theirs` selects the peer's. The choices may differ,
    /// because all messages of a rank arrive on the connection that it chose.
    pub fn add_dialled(&self, rank: u32, stream: TcpStream, use_theirs: bool) {
        let (peer, stream) = self.add(rank, stream);
        lock(&peer.incoming).add(LOCAL_CONN, stream.clone());
        if !use_theirs || self.adopt_incoming(rank) == 0 {
            lock(&peer.outgoing).add(stream);
        }
        self.shared.rebuild_poll_set();
    }

    /// Reuses a connection that the peer opened for messages to it. A bidirectional connection needs
    /// fewer packets because acknowledgements piggyback on data. Returns the number of connections.
    pub fn adopt_incoming(&self, rank: u32) -> usize {
        let peer = self.peer(rank);
        let theirs = lock(&peer.incoming).peer_initiated();
        let mut outgoing = lock(&peer.outgoing);
        if let Some(stream) = theirs.filter(|_| outgoing.connections() == 0) {
            outgoing.add(stream);
        }
        outgoing.connections()
    }

    fn stripes(&self, length: usize) -> u8 {
        self.dialler.get().map_or(1, |dialler| dialler.stripes(length))
    }

    /// Returns whether anything was written.
    fn write(&self, to: u32, outgoing: &mut Outgoing) -> bool {
        let mut report = Report::default();
        let wrote = outgoing.write(&mut report).unwrap_or_else(|error| {
            *outgoing = Outgoing::default();
            let why = std::io::Error::from(error).to_string();
            report.broken.push((to, LinkDirection::Send, why));
            true
        });
        self.shared.record(report);
        wrote
    }

    /// Returns whether anything was read.
    fn read(&self, from: u32, peer: &PeerSockets, limit: u64) -> bool {
        let Some(mut incoming) = try_lock(&peer.incoming) else { return false };
        let mut report = Report::default();
        let (queue, shared) = (&peer.queue, &*self.shared);
        let mut ctx = ReadCtx { queue, shared, limit, report: &mut report };
        let read = incoming.read(&mut ctx).unwrap_or_else(|why| {
            incoming.close_all();
            report.broken.push((from, LinkDirection::Recv, why));
            true
        });
        // Before another thread may cancel the communicator of a completed request.
        self.shared.record(report);
        read
    }

    /// Locks connections, or makes sure that the thread that holds the lock hands them over.
    fn lock_for_poll<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        try_lock(mutex).or_else(|| {
            self.shared.omit_from_poll();
            try_lock(mutex)
        })
    }

    /// Closes all connections.
    pub fn close_all(&self) {
        *lock(&self.peers) = Arc::default();
    }
}

impl Network for Sockets {
    fn connect(&self, to: u32, length: usize, cancelled: &dyn Fn() -> bool) -> Result<(), String> {
        let stripes = self.stripes(length);
        let connected = self.connections_to(to) >= usize::from(stripes);
        if connected || self.shared.lock().broken.contains_key(&(to, LinkDirection::Send)) {
            return Ok(());
        }
        let dialler = self.dialler.get().ok_or("the ranks are not known yet")?;
        dialler.dial(self, to, stripes, cancelled)
    }

    /// Writes as much of the message as the sockets accept.
    fn send(&self, to: u32, message: UserSend) {
        let stripes = self.stripes(message.envelope.length as usize);
        let peer = self.peer(to);
        let mut outgoing = lock(&peer.outgoing);
        outgoing.push(message, stripes);
        self.write(to, &mut outgoing);
        if outgoing.has_queued() {
            self.shared.rebuild_poll_set();
        }
    }

    /// An unexpected message is copied to the receive at once.
    fn receive(&self, from: u32, recv: UserRecv) {
        let comm_id = recv.envelope.key.comm_id;
        let result = lock(&self.peer(from).queue).post(recv);
        let mut report = Report::default();
        match result {
            MatchResult::Deliver(mut recv, payload) => {
                recv.buffer.write(0, &payload.unwrap_or_default());
                report.completed.push((comm_id, recv.request));
            }
            MatchResult::Discard(_, error) => report.add_error(comm_id, error),
            MatchResult::Queued => return self.shared.rebuild_poll_set(),
        }
        self.shared.record(report);
    }

    /// Connections that other threads use are left to them.
    fn progress(&self) {
        let mut moved = false;
        let peers = self.all();
        for (rank, peer) in &*peers {
            if let Some(mut outgoing) = try_lock(&peer.outgoing) {
                moved |= outgoing.has_queued() && self.write(*rank, &mut outgoing);
            }
        }
        for (rank, peer) in &*peers {
            moved |= self.read(*rank, peer, self.unexpected_limit);
        }
        // The awaited message may follow more unexpected messages than the limit allows, so peers
        // over the limit must be read eventually. Other peers are only read first.
        if moved && self.deferrals.fetch_add(1, Ordering::Relaxed) < MAX_DEFERRALS {
            return;
        }
        self.deferrals.store(0, Ordering::Relaxed);
        let is_full =
            |peer: &PeerSockets| lock(&peer.queue).unexpected_bytes() >= self.unexpected_limit;
        for (rank, peer) in peers.iter().filter(|(_, peer)| is_full(peer)) {
            self.read(*rank, peer, u64::MAX);
        }
    }

    fn sleep_set(&self, limit: Duration) -> SleepSet {
        let mut sockets = Vec::new();
        for peer in self.all().values() {
            if let Some(outgoing) = self.lock_for_poll(&peer.outgoing) {
                sockets.extend(outgoing.blocked().map(|s| (s.clone(), PollFlags::OUT)));
            }
            if let Some(incoming) = self.lock_for_poll(&peer.incoming) {
                let has_posted = lock(&peer.queue).has_posted();
                sockets.extend(incoming.awaited(has_posted).map(|s| (s.clone(), PollFlags::IN)));
            }
        }
        SleepSet { sockets, fd: None, limit }
    }

    fn cancel(&self, comm_id: u64, _: bool) {
        for peer in self.all().values() {
            lock(&peer.outgoing).cancel(comm_id);
            // First, so that no further message is delivered.
            lock(&peer.queue).cancel(comm_id);
            lock(&peer.incoming).cancel(comm_id);
        }
    }

    fn close(&self, comm_id: u64) {
        for peer in self.all().values() {
            lock(&peer.queue).close(comm_id);
        }
    }

    fn unacked_for(&self, rank: u32) -> Option<Duration> {
        let peer = self.peer(rank);
        let streams = lock(&peer.streams);
        streams.iter().filter_map(|stream| unacked_for(stream)).max()
    }
}
