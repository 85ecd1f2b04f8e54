//! The receiver's side of the handshake.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::NetResult;
use super::frame::Exchange;
use super::handle::{Handle, Token, new_token};
use super::nic::{Connection, Direction, Nic};

/// Handshakes at the same time; more than one only if strangers connect.
const MAX_HANDSHAKES: usize = 16;
/// Time for a handshake, if others wait.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a connection may have failed for want of descriptors.
const DESCRIPTORS_CHECK: Duration = Duration::from_secs(1);

/// Errors of `accept` after which it may be called again.
const TRANSIENT: [ErrorKind; 2] = [ErrorKind::Interrupted, ErrorKind::ConnectionAborted];

/// Waits for a sender that knows the handle.
pub struct Listener {
    nic: Arc<Nic>,
    socket: TcpListener,
    handle: Handle,
    handshakes: Mutex<Vec<Handshake>>,
}

struct Handshake {
    exchange: Exchange,
    /// Once the sender has proved that it knows the token.
    connection: Option<Connection>,
    since: Instant,
}

impl Listener {
    /// Listens for one sender.
    pub fn new(nic: Arc<Nic>) -> NetResult<Self> {
        let ip = nic.options.control_ip;
        let listen = || {
            let socket = TcpListener::bind(SocketAddr::new(ip, 0))?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let listened: std::io::Result<_> = listen();
        let (socket, address) =
            listened.map_err(|error| format!("cannot listen on {ip}: {error}"))?;
        let handle = Handle { address, token: new_token()? };
        Ok(Self { nic, socket, handle, handshakes: Mutex::default() })
    }

    /// What the sender needs.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The connection, once the sender has connected. Never blocks.
    pub fn accept(&self) -> NetResult<Option<Connection>> {
        self.accept_at(Instant::now())
    }

    pub(super) fn accept_at(&self, now: Instant) -> NetResult<Option<Connection>> {
        let mut handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        self.accept_sockets(&mut handshakes, now)?;
        let mut at = 0;
        while at < handshakes.len() {
            // A sender that is busy, or stopped, is waited for.
            let is_full = handshakes.len() == MAX_HANDSHAKES;
            let is_late = is_full && handshakes[at].is_late(now);
            match handshakes[at].advance(&self.nic, self.handle.token, now) {
                Ok(false) if !is_late => at += 1,
                Ok(true) => return Ok(handshakes.swap_remove(at).connection),
                // A stranger, or a sender that has given up.
                Ok(false) | Err(HandshakeError::Dropped) => drop(handshakes.swap_remove(at)),
                Err(HandshakeError::Failed(why)) => {
                    handshakes.swap_remove(at);
                    return Err(why);
                }
            }
        }
        Ok(None)
    }

    fn accept_sockets(&self, handshakes: &mut Vec<Handshake>, now: Instant) -> NetResult {
        while handshakes.len() < MAX_HANDSHAKES {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                        let exchange = Exchange::new(stream);
                        handshakes.push(Handshake { exchange, connection: None, since: now });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if TRANSIENT.contains(&error.kind()) => {}
                Err(error) => {
                    return Err(format!("cannot accept on {}: {error}", self.handle.address));
                }
            }
        }
        Ok(())
    }
}

enum HandshakeError {
    /// Not a sender of this job.
    Dropped,
    /// The sender cannot be connected.
    Failed(String),
}

impl Handshake {
    /// Whether it takes too long, and is not known to be of the sender.
    fn is_late(&self, now: Instant) -> bool {
        self.connection.is_none() && now >= self.since + HANDSHAKE_TIMEOUT
    }

    /// Returns whether the connection is established.
    fn advance(
        &mut self,
        nic: &Arc<Nic>,
        token: Token,
        now: Instant,
    ) -> Result<bool, HandshakeError> {
        if self.connection.is_none() {
            let received = self.exchange.receive().map_err(|_| HandshakeError::Dropped)?;
            let Some(hello) = received else { return Ok(false) };
            if hello.token != token {
                return Err(HandshakeError::Dropped);
            }
            let failed = HandshakeError::Failed;
            let stream = self.exchange.stream.try_clone();
            let stream = stream.map_err(|error| failed(format!("{}: {error}", hello.host)))?;
            let connection = nic.add_connection(Direction::Recv).map_err(failed)?;
            nic.connected(&connection, &hello, stream).map_err(failed)?;
            self.exchange.send(&nic.hello(&connection, token));
            self.connection = Some(connection);
        }
        let is_sent = self.exchange.flush().map_err(|_| HandshakeError::Dropped)?;
        let Some(connection) = self.connection.as_ref().filter(|_| is_sent) else {
            return Ok(false);
        };
        let is_established = nic.is_established(connection).map_err(HandshakeError::Failed)?;
        if !is_established && now >= self.since + DESCRIPTORS_CHECK {
            self.check_descriptors()?;
        }
        Ok(is_established)
    }

    /// Fails if the process cannot open more files: libfabric does not report that it cannot accept a connection.
    fn check_descriptors(&self) -> Result<(), HandshakeError> {
        let opened = self.exchange.stream.try_clone();
        let failed = |error| {
            HandshakeError::Failed(format!(
                "cannot accept a connection: {error}; check `ulimit -n`"
            ))
        };
        opened.map(drop).map_err(failed)
    }
}
