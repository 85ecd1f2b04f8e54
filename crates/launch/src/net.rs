//! Many links in one thread: opens and accepts connections, and carries the frames of those whose
//! other side proved that it is of this job. What a link makes of its bytes is in [`regatta_wire::link`].
//!
//! Strangers may do to a listener what they like. Each holds a file and a handshake's buffer for a
//! limited time, and the oldest of too many has to go.

mod conn;
mod drive;
mod listener;
mod refusals;
mod waker;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use conn::{Conn, Phase};
use listener::Listener;
use refusals::Refusals;
use regatta_wire::link::{Link, LinkError, Role, Step, Timing};
use regatta_wire::secret::{self, Secret};

pub use refusals::Refusal;
pub use waker::Waker;

/// A connection; no two of a [`Net`] ever have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A listener; no two of a [`Net`] ever have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// What happened.
#[derive(Debug)]
pub enum NetEvent {
    /// Both sides proved themselves.
    Ready {
        /// Which connection.
        conn: ConnId,
        /// Where it came in; `None`: we called.
        listener: Option<ListenerId>,
        /// The other side.
        peer: SocketAddr,
    },
    /// A payload came.
    Frame {
        /// On which connection.
        conn: ConnId,
        /// What came.
        payload: Vec<u8>,
    },
    /// A connection is over; all that came before has been told. Not told of one that we closed,
    /// and not of one that was accepted and never became ready: that is a [`Refusal`].
    Closed {
        /// Which one.
        conn: ConnId,
        /// Why.
        why: Why,
    },
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// It never came about: nobody listens there, or nothing leads there.
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The other side closed it, or its process ended.
    #[error("the other side closed the connection")]
    Ended,
    /// The protocol was broken, or the other side is silent.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// How long a connection that we close has to take what is queued.
const FLUSH: Duration = Duration::from_secs(1);

/// The events that are fetched from the kernel at once.
const BATCH: usize = 1024;

/// The waker's place among the connections and listeners, which count from zero.
const WAKE: Token = Token(usize::MAX);

/// All connections of a process. Dropping it closes them, and its listeners.
#[derive(Debug)]
pub struct Net {
    secret: Secret,
    timing: Timing,
    poll: Poll,
    fetched: Events,
    waker: Waker,
    next_id: u64,
    conns: HashMap<ConnId, Conn>,
    listeners: HashMap<ListenerId, Listener>,
    refusals: Refusals,
    /// Connections that could not even be begun.
    stillborn: Vec<(ConnId, io::Error)>,
    /// Connections with something to write.
    to_flush: Vec<ConnId>,
    /// Connections that had more to read than their share.
    to_read: Vec<ConnId>,
    /// Listeners that may have more to accept.
    to_accept: BTreeSet<ListenerId>,
    /// No files were left: nothing is accepted before this time.
    accept_after: Option<Instant>,
    next_tick: Instant,
    next_beat: Instant,
    buffer: Box<[u8]>,
    steps: Vec<Step>,
}

impl Net {
    /// One without connections.
    pub fn new(secret: Secret, timing: Timing) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok(Self {
            secret,
            timing,
            poll,
            fetched: Events::with_capacity(BATCH),
            waker,
            next_id: 0,
            conns: HashMap::new(),
            listeners: HashMap::new(),
            refusals: Refusals::default(),
            stillborn: Vec::new(),
            to_flush: Vec::new(),
            to_read: Vec::new(),
            to_accept: BTreeSet::new(),
            accept_after: None,
            next_tick: Instant::now(),
            next_beat: Instant::now(),
            buffer: vec![0; 64 << 10].into(),
            steps: Vec::new(),
        })
    }

    /// Listens at an address. Port 0 is any that is free; the address that it became is returned.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        let id = ListenerId(self.take_id());
        let mut listener = Listener::bind(address)?;
        let address = listener.socket.local_addr()?;
        self.poll.registry().register(&mut listener.socket, token(id.0), Interest::READABLE)?;
        self.listeners.insert(id, listener);
        Ok((id, address))
    }

    /// Begins to connect. Ready or Closed tells what came of it, the latter also when it takes
    /// longer than a handshake may.
    pub fn connect(&mut self, address: SocketAddr) -> ConnId {
        let id = ConnId(self.take_id());
        if let Err(error) = self.try_connect(id, address) {
            self.stillborn.push((id, error));
        }
        id
    }

    /// Queues a payload, also before the connection is ready; the next [`Self::poll`] sends it.
    /// False: the connection is gone, or the payload longer than [`regatta_wire::link::LONGEST`].
    pub fn send(&mut self, id: ConnId, payload: &[u8]) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        if matches!(conn.phase, Phase::Closing(_)) || !conn.link.send(payload) {
            return false;
        }
        self.flush_later(id);
        true
    }

    /// The bytes queued on a connection: they pile up if the other side does not read.
    pub fn backlog(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| conn.link.backlog())
    }

    /// Closes a connection once what is queued is sent, or after a moment; one that is not yet ready
    /// at once. No event tells of it.
    pub fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return self.abort(id) };
        if conn.link.is_ready() {
            conn.phase = Phase::Closing(Instant::now() + FLUSH);
            self.flush_later(id);
        } else {
            self.abort(id);
        }
    }

    /// Closes a connection at once. No event tells of it.
    pub fn abort(&mut self, id: ConnId) {
        self.stillborn.retain(|(conn, _)| *conn != id);
        self.remove(id);
    }

    /// How many connections that we closed still send what is queued. Before the end of the process
    /// poll until there are none.
    pub fn closing(&self) -> usize {
        self.conns.values().filter(|conn| matches!(conn.phase, Phase::Closing(_))).count()
    }

    /// A handle that ends [`Self::poll`] from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The refusals that were not yet told. Each stranger and reason is told once.
    pub fn refusals(&mut self) -> Vec<Refusal> {
        self.refusals.news()
    }

    /// All refusals so far, with their counts.
    pub fn all_refusals(&self) -> &[Refusal] {
        self.refusals.all()
    }

    fn try_connect(&mut self, id: ConnId, address: SocketAddr) -> io::Result<()> {
        let now = Instant::now();
        let stream = TcpStream::connect(address)?;
        self.add(id, stream, address, None, Phase::Connecting(now), now)
    }

    fn add(
        &mut self,
        id: ConnId,
        mut stream: TcpStream,
        peer: SocketAddr,
        listener: Option<ListenerId>,
        phase: Phase,
        now: Instant,
    ) -> io::Result<()> {
        let role = if listener.is_some() { Role::Listener } else { Role::Caller };
        let link = Link::new(role, &self.secret, secret::random()?, self.timing, now);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, token(id.0), interest)?;
        self.conns.insert(id, Conn::new(stream, link, peer, listener, phase));
        Ok(())
    }

    fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let conn = self.conns.remove(&id)?;
        self.no_stranger(id, conn.listener);
        Some(conn)
    }

    /// It is gone, or has proved itself.
    fn no_stranger(&mut self, id: ConnId, listener: Option<ListenerId>) {
        if let Some(listener) = listener.and_then(|l| self.listeners.get_mut(&l)) {
            listener.strangers.remove(&id);
        }
    }

    fn flush_later(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.listed
        {
            conn.listed = true;
            self.to_flush.push(id);
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

fn token(id: u64) -> Token {
    Token(id as usize)
}
