//! The control-plane thread of a rank. It sends heartbeats, accepts connections and exchanges control
//! messages with rank 0, even while the rank computes.

mod dispatch;
mod root;
mod table_server;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use regatta_wire::clock;
use regatta_wire::link::Timing;
use regatta_wire::reactor::{ConnId, NetEvent, Reactor, Waker};
use regatta_wire::secret::Secret;

use super::dial::AuthConn;
use super::messages::{ToRoot, encode};
use super::registry::CommRegistry;
use crate::tcp::Sockets;
use root::Outgoing;
pub use root::RootState;
use table_server::TableServer;

/// Interval of the coordinator's timeout checks.
const TICK: Duration = Duration::from_millis(50);
/// Time to deliver the last messages. After a failed rendezvous, rank 0 reports the error to late
/// ranks for this long.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle to the control-plane thread.
#[derive(Clone)]
pub struct ControlHandle {
    outbox: Sender<LocalMessage>,
    waker: Waker,
    flushed: Arc<Mutex<Receiver<()>>>,
}

/// A message from this rank's other threads.
#[derive(Debug)]
pub enum LocalMessage {
    ToRoot(ToRoot),
    /// The encoded world table, for this many ranks that request it.
    WorldTable(Arc<[u8]>, u32),
}

impl ControlHandle {
    /// Sends a message to rank 0. Ignored if the thread has ended.
    pub fn send(&self, message: ToRoot) {
        self.send_local(LocalMessage::ToRoot(message));
    }

    /// Passes the world table on to the `children` ranks that request it.
    pub fn pass_on(&self, table: &[u8], children: u32) {
        self.send_local(LocalMessage::WorldTable(table.into(), children));
    }

    fn send_local(&self, message: LocalMessage) {
        let _ = self.outbox.send(message);
        self.waker.wake();
    }

    /// A handle without a thread, and the messages sent through it.
    #[cfg(test)]
    pub fn unconnected(secret: Secret, timing: Timing) -> (Self, Receiver<LocalMessage>) {
        let (outbox, messages) = channel();
        let waker = Reactor::new(secret, timing).unwrap().waker();
        let flushed = Arc::new(Mutex::new(channel().1));
        (Self { outbox, waker, flushed }, messages)
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
        /// The connection to rank 0.
        root: Box<AuthConn>,
    },
}

/// The state of the role.
enum RoleState {
    Root(Box<RootState>),
    Member {
        /// The connection to rank 0.
        root: ConnId,
        /// Whether rank 0 exited regularly.
        root_shut_down: bool,
    },
}

/// The state of the control-plane thread.
pub struct ControlPlane {
    net: Reactor,
    /// The ranks that registered with this one, which is rank 0.
    ranks: HashMap<ConnId, u32>,
    outbox: Receiver<LocalMessage>,
    sockets: Arc<Sockets>,
    registry: Arc<CommRegistry>,
    tables: TableServer,
    /// Frames of rank 0 that arrived with its reply to the registration.
    unread: Vec<Vec<u8>>,
    lost_after: Duration,
    role: RoleState,
    /// When this rank announced its exit.
    closing: Option<Instant>,
    /// Signalled when all messages are sent.
    flushed: Sender<()>,
}

impl ControlPlane {
    /// The control plane of a rank.
    pub fn new(
        listener: TcpListener,
        secret: Secret,
        timing: Timing,
        (sockets, registry): (Arc<Sockets>, Arc<CommRegistry>),
        role: ControlRole,
    ) -> io::Result<(Self, ControlHandle)> {
        let mut net = Reactor::new(secret, timing)?;
        net.add_listener(listener)?;
        let (sender, outbox) = channel();
        let (flushed, is_flushed) = channel();
        let mut unread = Vec::new();
        let role = match role {
            ControlRole::Root(root) => RoleState::Root(root),
            ControlRole::Member { root } => {
                let AuthConn { stream, link, unread: frames } = *root;
                unread = frames;
                let root = net.adopt(stream, link)?;
                RoleState::Member { root, root_shut_down: false }
            }
        };
        let waker = net.waker();
        let plane = Self {
            net,
            ranks: HashMap::new(),
            outbox,
            sockets,
            registry,
            tables: TableServer::default(),
            unread,
            lost_after: timing.lost_after,
            role,
            closing: None,
            flushed,
        };
        let flushed = Arc::new(Mutex::new(is_flushed));
        Ok((plane, ControlHandle { outbox: sender, waker, flushed }))
    }

    /// Runs until this rank has exited; on rank 0, until all ranks have.
    pub fn run(mut self) {
        let mut events = Vec::new();
        let mut ticked = clock::now();
        for frame in std::mem::take(&mut self.unread) {
            self.handle_root_frame(&frame);
        }
        while !self.is_finished() {
            // A transient failure only shortens the wait.
            let _ = self.net.poll(TICK, &mut events);
            for event in events.drain(..) {
                match event {
                    NetEvent::Ready { .. } => {}
                    NetEvent::Frame { conn, payload } => self.handle_frame(conn, &payload),
                    NetEvent::Closed { conn, why } => self.connection_ended(conn, &why.to_string()),
                }
            }
            self.drain_local();
            if clock::elapsed(ticked) >= TICK {
                ticked = clock::now();
                self.tick(ticked);
            }
            self.dispatch_outgoing();
            self.tables.serve(&mut self.net);
            if self.closing.is_some() {
                self.net.flush_and_heartbeat();
                if !self.net.has_unsent() {
                    let _ = self.flushed.send(());
                }
            }
        }
    }

    fn is_finished(&self) -> bool {
        let Some(since) = self.closing else { return false };
        let expired = clock::elapsed(since) > SHUTDOWN_TIMEOUT;
        let is_done = || expired || !self.net.has_unsent();
        match &self.role {
            RoleState::Member { .. } => is_done(),
            RoleState::Root(root) if root.has_failed() => expired,
            RoleState::Root(root) => root.conns.is_empty() && is_done(),
        }
    }

    /// Handles the messages of this rank's own communicators.
    fn drain_local(&mut self) {
        loop {
            let message = match self.outbox.try_recv() {
                Ok(LocalMessage::ToRoot(message)) => message,
                Ok(LocalMessage::WorldTable(table, children)) => {
                    self.tables.set(table, children);
                    continue;
                }
                Err(TryRecvError::Empty) => return,
                // All handles are dropped: the process panics or never had a communicator.
                Err(TryRecvError::Disconnected) if self.closing.is_some() => return,
                Err(TryRecvError::Disconnected) => ToRoot::Shutdown,
            };
            if message == ToRoot::Shutdown {
                self.closing.get_or_insert_with(clock::now);
            }
            match &mut self.role {
                RoleState::Root(root) => root.coordinator.handle(0, message, clock::now()),
                RoleState::Member { root, .. } => {
                    self.net.send(*root, &encode(&message));
                }
            }
        }
    }

    /// Sends the messages of rank 0. Other ranks come first, because this process may exit when it
    /// handles its own.
    fn dispatch_outgoing(&mut self) {
        while let RoleState::Root(root) = &mut self.role {
            root.update_table(&mut self.tables);
            let outgoing = root.take_outgoing();
            if outgoing.is_empty() {
                return;
            }
            for Outgoing { conns, frame, .. } in &outgoing {
                for conn in conns {
                    self.net.send(*conn, frame);
                }
            }
            self.net.flush_and_heartbeat();
            for message in outgoing.into_iter().filter_map(|outgoing| outgoing.own) {
                let answer = self.apply(message);
                if let (RoleState::Root(root), Some(answer)) = (&mut self.role, answer) {
                    root.coordinator.handle(0, answer, clock::now());
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        if let RoleState::Root(root) = &mut self.role {
            root.tick(now, self.net.all_refusals());
            if root.has_failed() {
                self.closing.get_or_insert(now);
            }
        }
    }
}
