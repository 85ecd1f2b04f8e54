//! A reactor for many links in one thread: opens and accepts connections and transfers the frames
//! of authenticated ones. The protocol is in [`crate::link`].
//!
//! Unauthenticated peers can do no harm to a listener: each occupies a file descriptor and a
//! handshake buffer for a limited time, and beyond a limit the oldest one is evicted.

mod connection;
mod event_loop;
mod listener;
mod refusals;
mod waker;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::clock;
use crate::link::{Link, LinkError, LinkEvent, Role, Timing};
use crate::secret::{self, Secret};
use connection::{ConnPhase, Connection};
use listener::LinkListener;
pub use listener::listen;
use refusals::Refusals;

pub use refusals::Refusal;
pub use waker::Waker;

/// ID of a connection, unique within a [`Reactor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// ID of a listener, unique within a [`Reactor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// An event of the reactor.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum NetEvent {
    /// The handshake is complete, on a connection accepted by `listener` or opened by this side.
    Ready { conn: ConnId, listener: Option<ListenerId>, peer: SocketAddr },
    /// A payload arrived.
    Frame { conn: ConnId, payload: Vec<u8> },
    /// A connection ended, after all its frames were reported. Not reported for connections that
    /// this side closed, nor for accepted ones that never authenticated, which are a [`Refusal`].
    Closed { conn: ConnId, why: CloseReason },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The connection could not be established.
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    /// The peer closed the connection or exited.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// Most peers are silent, which one cause on this host explains better than one on each of them.
    #[error(
        "no heartbeat from {silent} of {peers} peers: the network of this host is down, or all of \
         these peers are"
    )]
    NetworkDown {
        /// Peers that are silent.
        silent: usize,
        /// All connected peers.
        peers: usize,
    },
    /// Protocol error or timeout.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Time to send queued data on a connection that this side closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of events per system call.
const EVENT_BATCH: usize = 1024;

/// Token of the waker; connections and listeners count from zero.
const WAKE_TOKEN: Token = Token(usize::MAX);

/// All connections and listeners of a process. Dropping it closes them.
#[derive(Debug)]
pub struct Reactor {
    secret: Secret,
    timing: Timing,
    poll: Poll,
    mio_events: Events,
    waker: Waker,
    next_id: u64,
    conns: HashMap<ConnId, Connection>,
    listeners: HashMap<ListenerId, LinkListener>,
    refusals: Refusals,
    /// Connections that failed before they were registered.
    failed_connects: Vec<(ConnId, io::Error)>,
    /// Connections with pending data.
    to_flush: Vec<ConnId>,
    /// Connections with unread data left by the last poll.
    to_read: Vec<ConnId>,
    /// Listeners that may have pending connections.
    to_accept: BTreeSet<ListenerId>,
    /// No connection is accepted before this time, after file descriptors were exhausted.
    accept_after: Option<Instant>,
    next_tick: Instant,
    next_heartbeat: Instant,
    buffer: Box<[u8]>,
    link_events: Vec<LinkEvent>,
}

impl Reactor {
    /// Creates a reactor without connections.
    pub fn new(secret: Secret, timing: Timing) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE_TOKEN)?;
        Ok(Self {
            secret,
            timing,
            poll,
            mio_events: Events::with_capacity(EVENT_BATCH),
            waker,
            next_id: 0,
            conns: HashMap::new(),
            listeners: HashMap::new(),
            refusals: Refusals::default(),
            failed_connects: Vec::new(),
            to_flush: Vec::new(),
            to_read: Vec::new(),
            to_accept: BTreeSet::new(),
            accept_after: None,
            next_tick: clock::now(),
            next_heartbeat: clock::now(),
            buffer: vec![0; 64 << 10].into(),
            link_events: Vec::new(),
        })
    }

    /// Listens on an address; port 0 selects a free port. Returns the bound address.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        let socket = listen(address)?;
        let address = socket.local_addr()?;
        Ok((self.add_listener(socket)?, address))
    }

    /// Accepts connections from a socket that listens already.
    pub fn add_listener(&mut self, socket: std::net::TcpListener) -> io::Result<ListenerId> {
        socket.set_nonblocking(true)?;
        let mut listener = LinkListener::new(mio::net::TcpListener::from_std(socket));
        let id = ListenerId(self.allocate_id());
        self.poll.registry().register(&mut listener.socket, token(id.0), Interest::READABLE)?;
        self.listeners.insert(id, listener);
        Ok(id)
    }

    /// Adds a connection that was opened and authenticated elsewhere.
    pub fn adopt(&mut self, stream: std::net::TcpStream, link: Link) -> io::Result<ConnId> {
        let peer = stream.peer_addr()?;
        stream.set_nonblocking(true)?;
        let id = ConnId(self.allocate_id());
        let conn = Connection::new(TcpStream::from_std(stream), link, peer, None, ConnPhase::Open);
        self.insert(id, conn)?;
        Ok(id)
    }

    /// A second handle to the socket of a connection, for [`Self::release`].
    pub fn duplicate(&self, id: ConnId) -> io::Result<std::net::TcpStream> {
        let conn = self.conns.get(&id).ok_or(io::ErrorKind::NotConnected)?;
        Ok(conn.stream.as_fd().try_clone_to_owned()?.into())
    }

    /// Sends a last frame and forgets a connection, which stays open if it was duplicated. The frame
    /// must fit into the empty send buffer of the socket.
    pub fn release(&mut self, id: ConnId, last: &[u8]) {
        if let Some(mut conn) = self.remove(id) {
            conn.link.send(last);
            // If it cannot be sent, the peer gives up.
            let _ = conn.flush();
            let _ = self.poll.registry().deregister(&mut conn.stream);
        }
    }

    /// Whether data is queued on any connection.
    pub fn has_unsent(&self) -> bool {
        self.conns.values().any(|conn| !conn.link.pending().is_empty())
    }

    /// Starts to connect. Reports [`NetEvent::Ready`], or [`NetEvent::Closed`] on failure or when
    /// the handshake timeout expires.
    pub fn connect(&mut self, address: SocketAddr) -> ConnId {
        let id = ConnId(self.allocate_id());
        if let Err(error) = self.try_connect(id, address) {
            self.failed_connects.push((id, error));
        }
        id
    }

    /// Queues a payload, also before the connection is ready; the next [`Self::poll`] sends it.
    /// False if the connection is gone or the payload exceeds
    /// [`crate::link::MAX_FRAME_LEN`].
    pub fn send(&mut self, id: ConnId, payload: &[u8]) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        if matches!(conn.phase, ConnPhase::Closing(_)) || !conn.link.send(payload) {
            return false;
        }
        self.queue_flush(id);
        true
    }

    /// Bytes queued on a connection. They accumulate if the peer does not read.
    pub fn backlog(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| conn.link.backlog())
    }

    /// Closes a connection after sending its queued data, or after one second; one that is
    /// not ready is closed at once. No event is reported.
    pub fn close(&mut self, id: ConnId) {
        match self.conns.get_mut(&id).filter(|conn| conn.link.is_ready()) {
            Some(conn) => {
                conn.phase = ConnPhase::Closing(clock::now() + CLOSE_TIMEOUT);
                self.queue_flush(id);
            }
            None => self.abort(id),
        }
    }

    /// Closes a connection at once. No event is reported.
    pub fn abort(&mut self, id: ConnId) {
        self.failed_connects.retain(|(conn, _)| *conn != id);
        self.remove(id);
    }

    /// Number of closed connections with unsent data. Poll until it is zero before exiting.
    pub fn closing(&self) -> usize {
        self.conns.values().filter(|conn| matches!(conn.phase, ConnPhase::Closing(_))).count()
    }

    /// A handle that wakes [`Self::poll`] from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// New refusals. Each combination of peer and reason is returned once.
    pub fn refusals(&mut self) -> Vec<Refusal> {
        self.refusals.take_new()
    }

    /// All refusals so far, with their counts.
    pub fn all_refusals(&self) -> &[Refusal] {
        self.refusals.all()
    }

    fn try_connect(&mut self, id: ConnId, address: SocketAddr) -> io::Result<()> {
        let now = clock::now();
        let stream = TcpStream::connect(address)?;
        self.add(id, stream, address, None, ConnPhase::Connecting(now), now)
    }

    fn add(
        &mut self,
        id: ConnId,
        stream: TcpStream,
        peer: SocketAddr,
        listener: Option<ListenerId>,
        phase: ConnPhase,
        now: Instant,
    ) -> io::Result<()> {
        let role = if listener.is_some() { Role::Responder } else { Role::Initiator };
        let link = Link::new(role, &self.secret, secret::random_bytes()?, self.timing, now);
        self.insert(id, Connection::new(stream, link, peer, listener, phase))
    }

    fn insert(&mut self, id: ConnId, mut conn: Connection) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut conn.stream, token(id.0), interest)?;
        self.conns.insert(id, conn);
        Ok(())
    }

    fn remove(&mut self, id: ConnId) -> Option<Connection> {
        let conn = self.conns.remove(&id)?;
        self.forget_unauthenticated(id, conn.listener);
        Some(conn)
    }

    /// Removes a connection from its listener's unauthenticated ones.
    fn forget_unauthenticated(&mut self, id: ConnId, listener: Option<ListenerId>) {
        if let Some(listener) = listener.and_then(|l| self.listeners.get_mut(&l)) {
            listener.unauthenticated.remove(&id);
        }
    }

    fn queue_flush(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.queue_flush(id, &mut self.to_flush);
        }
    }

    fn allocate_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

fn token(id: u64) -> Token {
    Token(id as usize)
}
