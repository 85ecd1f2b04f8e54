//! The control-plane thread of a rank. It sends heartbeats, accepts connections and exchanges control
//! messages with rank 0, even while the rank computes.

mod conn;
mod dispatch;
mod root;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use regatta_wire::clock;
use regatta_wire::link::{Link, Role, Timing};
use regatta_wire::secret::{Secret, random_bytes};
use rustix::process::{Resource, getrlimit};

use super::dial::AuthConn;
use super::messages::{ToRoot, encode};
use super::registry::CommRegistry;
use crate::tcp::SharedDataPlane;
use conn::{Conn, ConnPeer};
use root::Outgoing;
pub use root::RootState;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;
/// Interval of timeout and heartbeat checks.
const TICK: Duration = Duration::from_millis(50);
/// Time to deliver the last messages. After a failed rendezvous, rank 0 reports the error to late
/// ranks for this long.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Upper limit of connections that have not authenticated yet. Lower if the process may only open
/// few files.
const MAX_UNAUTHENTICATED: u64 = 4096;
/// Connections accepted before those that are open are served again: a flood of connections must not
/// delay the handshakes of ranks.
const ACCEPT_BATCH: usize = 64;

/// Whether this process or system cannot open more files.
fn is_exhausted(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn max_unauthenticated() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    MAX_UNAUTHENTICATED.min(files / 4) as usize
}

/// A handle to the control-plane thread.
#[derive(Clone)]
pub struct ControlHandle {
    outbox: Sender<ToRoot>,
    waker: Arc<Waker>,
    flushed: Arc<Mutex<Receiver<()>>>,
    world_table: WorldTable,
}

/// The encoded [`FromRoot::Ready`](super::messages::FromRoot::Ready), once this rank has it.
type WorldTable = Arc<OnceLock<Arc<[u8]>>>;

impl ControlHandle {
    /// Sends a message to rank 0. Ignored if the thread has ended.
    pub fn send(&self, message: ToRoot) {
        let _ = self.outbox.send(message);
        let _ = self.waker.wake();
    }

    /// Passes the world table on to the ranks that request it.
    pub fn set_world_table(&self, frame: &[u8]) {
        let _ = self.world_table.set(frame.into());
        let _ = self.waker.wake();
    }

    /// A handle without a thread, and the messages sent through it.
    #[cfg(test)]
    pub fn unconnected() -> (Self, Receiver<ToRoot>) {
        let (outbox, messages) = channel();
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).unwrap());
        let flushed = Arc::new(Mutex::new(channel().1));
        (Self { outbox, waker, flushed, world_table: WorldTable::default() }, messages)
    }

    /// Announces a regular exit and waits until it is sent.
    pub fn shutdown(&self) {
        self.send(ToRoot::Shutdown);
        let flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = flushed.recv_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// The role of this rank in the control plane.
pub enum ControlRole {
    /// Rank 0.
    Root(Box<RootState>),
    /// Any other rank.
    Member {
        /// The ID of the connection to rank 0.
        root: usize,
        /// Whether rank 0 exited regularly.
        root_shut_down: bool,
    },
}

impl ControlRole {
    pub fn member() -> Self {
        Self::Member { root: FIRST, root_shut_down: false }
    }
}

/// The state of the control-plane thread.
pub struct ControlPlane {
    poll: Poll,
    listener: mio::net::TcpListener,
    conns: HashMap<usize, Conn>,
    /// Accepted connections, oldest first. Those that have authenticated or closed are removed lazily.
    accepted: VecDeque<usize>,
    /// Whether the listener may have more connections. It reports an event only for new ones.
    accept_again: bool,
    next: usize,
    outbox: Receiver<ToRoot>,
    shared: Arc<SharedDataPlane>,
    registry: Arc<CommRegistry>,
    world_table: WorldTable,
    /// Frames of rank 0 that arrived with its reply to the registration.
    unread: Vec<Vec<u8>>,
    /// Connections of ranks that wait for the world table.
    table_requests: Vec<usize>,
    secret: Secret,
    timing: Timing,
    role: ControlRole,
    /// When this rank announced its exit.
    closing: Option<Instant>,
    /// Signalled when all messages are sent.
    flushed: Sender<()>,
}

impl ControlPlane {
    /// The control plane of a rank; `to_root` is the connection to rank 0, if it is another rank.
    pub fn new(
        listener: TcpListener,
        secret: Secret,
        timing: Timing,
        (shared, registry): (Arc<SharedDataPlane>, Arc<CommRegistry>),
        role: ControlRole,
        to_root: Option<AuthConn>,
    ) -> io::Result<(Self, ControlHandle)> {
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, outbox) = channel();
        let (flushed, is_flushed) = channel();
        let mut plane = Self {
            poll,
            listener,
            conns: HashMap::new(),
            accepted: VecDeque::new(),
            accept_again: false,
            next: FIRST,
            outbox,
            shared,
            registry,
            world_table: WorldTable::default(),
            unread: Vec::new(),
            table_requests: Vec::new(),
            secret,
            timing,
            role,
            closing: None,
            flushed,
        };
        if let Some(AuthConn { stream, link, unread }) = to_root {
            plane.add(TcpStream::from_std(stream), link, ConnPeer::Root)?;
            plane.unread = unread;
        }
        let flushed = Arc::new(Mutex::new(is_flushed));
        let world_table = plane.world_table.clone();
        Ok((plane, ControlHandle { outbox: sender, waker, flushed, world_table }))
    }

    /// Runs until this rank has exited; on rank 0, until all ranks have.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut ticked = clock::now();
        self.handle_unread();
        while !self.is_finished() {
            let timeout = if self.accept_again { Duration::ZERO } else { TICK };
            // Errors are ignored: a signal or a transient failure only shortens the wait.
            let _ = self.poll.poll(&mut events, Some(timeout));
            if self.accept_again {
                self.accept();
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(id) => self.serve(id),
                }
            }
            self.drain_local();
            if clock::elapsed(ticked) >= TICK {
                ticked = clock::now();
                self.tick(ticked);
            }
            self.dispatch_outgoing();
            self.send_world_table();
            self.flush();
            if self.closing.is_some() && self.is_flushed() {
                let _ = self.flushed.send(());
            }
        }
    }

    fn is_finished(&self) -> bool {
        let Some(since) = self.closing else { return false };
        let done = self.is_flushed() || clock::elapsed(since) > SHUTDOWN_TIMEOUT;
        match &self.role {
            ControlRole::Member { .. } => done,
            ControlRole::Root(root) if root.has_failed() => {
                clock::elapsed(since) > SHUTDOWN_TIMEOUT
            }
            ControlRole::Root(root) => root.conns.is_empty() && done,
        }
    }

    /// Whether all messages are sent.
    fn is_flushed(&self) -> bool {
        self.conns.values().all(|conn| conn.link.pending().is_empty())
    }

    fn add(&mut self, mut stream: TcpStream, link: Link, peer: ConnPeer) -> io::Result<()> {
        let id = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(id), interest)?;
        self.conns.insert(id, Conn::new(stream, link, peer));
        Ok(())
    }

    /// Accepts up to [`ACCEPT_BATCH`] connections.
    fn accept(&mut self) {
        self.accept_again = false;
        for _ in 0..ACCEPT_BATCH {
            match self.listener.accept() {
                Ok((stream, from)) => self.add_unauthenticated(stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    // One of the open files may be a peer that never authenticates.
                    self.accept_again = self.evict_unauthenticated();
                    return;
                }
                // A signal, or a peer that is gone already.
                Err(_) => {}
            }
        }
        self.accept_again = true;
    }

    fn add_unauthenticated(&mut self, stream: TcpStream, from: SocketAddr) {
        // A connection without a nonce or that cannot be polled is dropped; the peer retries.
        let Ok(nonce) = random_bytes() else { return };
        if self.conns.len() >= max_unauthenticated() + self.authenticated() {
            self.evict_unauthenticated();
        }
        let link = Link::new(Role::Responder, &self.secret, nonce, self.timing, clock::now());
        self.accepted.push_back(self.next);
        let _ = self.add(stream, link, ConnPeer::Unauthenticated(from.ip()));
    }

    /// Closes the oldest connection that has not authenticated, if there is one. A rank authenticates
    /// within one round trip, so the oldest is the least likely to be one.
    fn evict_unauthenticated(&mut self) -> bool {
        self.prune_accepted();
        let oldest = self.accepted.pop_front();
        let why = || "closed before it authenticated: too many connections".to_owned();
        self.drop_all(oldest.map(|id| (id, why())).into_iter().collect());
        oldest.is_some()
    }

    /// Removes connections that have authenticated or closed from the front of `accepted`.
    fn prune_accepted(&mut self) {
        let Self { accepted, conns, .. } = self;
        let is_unauthenticated = |id: &usize| conns.get(id).is_some_and(|c| !c.link.is_ready());
        while accepted.front().is_some_and(|id| !is_unauthenticated(id)) {
            accepted.pop_front();
        }
    }

    fn authenticated(&self) -> usize {
        match &self.role {
            ControlRole::Root(root) => root.conns.len(),
            ControlRole::Member { .. } => 1,
        }
    }

    /// Handles input or the end of a connection.
    fn serve(&mut self, id: usize) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let mut frames = Vec::new();
        let end = conn.read(&mut frames, clock::now());
        let mut keep = true;
        for frame in frames {
            keep = keep && self.handle_frame(id, &mut conn, &frame);
        }
        match end {
            Some(why) if keep => self.connection_ended(conn.peer, &why),
            None if keep => {
                self.conns.insert(id, conn);
            }
            _ => {}
        }
    }

    /// Handles what rank 0 sent after its reply to the registration.
    fn handle_unread(&mut self) {
        for frame in std::mem::take(&mut self.unread) {
            let Some(mut conn) = self.conns.remove(&FIRST) else { return };
            self.handle_frame(FIRST, &mut conn, &frame);
            self.conns.insert(FIRST, conn);
        }
    }

    /// Handles the messages of this rank's own communicators.
    fn drain_local(&mut self) {
        loop {
            let message = match self.outbox.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Empty) => return,
                // All handles are dropped: the process panics or never had a communicator.
                Err(TryRecvError::Disconnected) if self.closing.is_some() => return,
                Err(TryRecvError::Disconnected) => ToRoot::Shutdown,
            };
            if message == ToRoot::Shutdown {
                self.closing.get_or_insert_with(clock::now);
            }
            match &mut self.role {
                ControlRole::Root(root) => root.coordinator.handle(0, message, clock::now()),
                ControlRole::Member { root, .. } => {
                    if let Some(conn) = self.conns.get_mut(root) {
                        conn.link.send(&encode(&message));
                    }
                }
            }
        }
    }

    /// Sends the messages of rank 0. Other ranks come first, because this process may exit when it
    /// handles its own.
    fn dispatch_outgoing(&mut self) {
        while let ControlRole::Root(root) = &mut self.role {
            let outgoing = root.take_outgoing();
            if outgoing.is_empty() {
                return;
            }
            for Outgoing { conns, frame, .. } in &outgoing {
                for id in conns {
                    if let Some(conn) = self.conns.get_mut(id) {
                        conn.link.send(frame);
                    }
                }
            }
            self.flush();
            for message in outgoing.into_iter().filter_map(|outgoing| outgoing.own) {
                let answer = self.apply(message);
                if let (ControlRole::Root(root), Some(answer)) = (&mut self.role, answer) {
                    root.coordinator.handle(0, answer, clock::now());
                }
            }
        }
    }

    /// Answers requests for the world table, once this rank has it.
    fn send_world_table(&mut self) {
        if let ControlRole::Root(root) = &mut self.role
            && let Some(table) = root.world_table.take()
        {
            let _ = self.world_table.set(table);
        }
        let Some(table) = self.world_table.get() else { return };
        for id in self.table_requests.drain(..) {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.link.send(table);
            }
        }
    }

    fn flush(&mut self) {
        let failed = |(id, conn): (&usize, &mut Conn)| Some((*id, conn.write().err()?.to_string()));
        let broken = self.conns.iter_mut().filter_map(failed).collect();
        self.drop_all(broken);
    }

    fn tick(&mut self, now: Instant) {
        let dead =
            |(id, conn): (&usize, &mut Conn)| Some((*id, conn.link.tick(now).err()?.to_string()));
        let dead = self.conns.iter_mut().filter_map(dead).collect();
        self.drop_all(dead);
        self.prune_accepted();
        // Accepting may have failed for lack of file descriptors.
        self.accept();
        if let ControlRole::Root(root) = &mut self.role {
            root.tick(now);
            if root.has_failed() {
                self.closing.get_or_insert(now);
            }
        }
    }

    fn drop_all(&mut self, which: Vec<(usize, String)>) {
        for (id, why) in which {
            if let Some(conn) = self.conns.remove(&id) {
                self.connection_ended(conn.peer, &why);
            }
        }
    }
}
