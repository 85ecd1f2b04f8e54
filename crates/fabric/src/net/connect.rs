//! The sender's side of the handshake.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::NetResult;
use super::frame::Exchange;
use super::handle::{Handle, Token};
use super::nic::{Connection, Direction, Nic, keep_alive};

/// A host program that was aborted does not call again: its connections are dropped after this time.
const ABANDONED: Duration = Duration::from_secs(600);
/// Time until another attempt to reach a host.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Connections that are being established. The host program calls `connect` again with the same handle
/// until there is a connection; a pointer in the handle could be forged by a peer, so they are found by the
/// handle's address and token.
#[derive(Default)]
pub struct Connectors(Mutex<HashMap<Key, Connecting>>);

type Key = (usize, Token);

struct Connecting {
    nic: Arc<Nic>,
    address: SocketAddr,
    state: State,
    since: Instant,
    last_call: Instant,
}

enum State {
    /// The kernel connects.
    Socket(OwnedFd),
    /// The host could not be reached. As in NCCL, that may pass: routes and links come up late.
    Unreachable {
        error: Errno,
        retry_at: Instant,
    },
    Handshake(Exchange, Connection),
    /// The endpoints connect.
    Endpoint(Connection),
}

impl Connectors {
    /// The connection to a listener, once it has accepted. Never blocks. `identity` is the address of the
    /// handle in memory; the first call selects the NIC.
    pub fn connect(
        &self,
        nic: impl FnOnce() -> NetResult<Arc<Nic>>,
        identity: usize,
        handle: Handle,
    ) -> NetResult<Option<Connection>> {
        let now = Instant::now();
        let key = (identity, handle.token);
        let described = |why: String| format!("cannot connect to {}: {why}", handle.address);
        let (own, abandoned) = self.take(key, now);
        drop(abandoned);
        let mut connecting = match own {
            Some(connecting) => connecting,
            None => Connecting::start(nic()?, handle.address, now).map_err(described)?,
        };
        connecting.last_call = now;
        match connecting.advance(handle.token, now).map_err(described)? {
            Progress::Connected(connection) => Ok(Some(connection)),
            Progress::Pending(connecting) => {
                self.lock().insert(key, connecting);
                Ok(None)
            }
        }
    }

    /// Takes out a connection, and those that are abandoned. What is done with them may wait for an endpoint, and
    /// must not keep connections of other endpoints waiting.
    fn take(&self, key: Key, now: Instant) -> (Option<Connecting>, Vec<Connecting>) {
        let mut all = self.lock();
        let own = all.remove(&key);
        let is_abandoned = |_: &Key, one: &mut Connecting| now >= one.last_call + ABANDONED;
        let abandoned = all.extract_if(is_abandoned).map(|(_, one)| one).collect();
        (own, abandoned)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Connecting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Progress {
    Pending(Connecting),
    Connected(Connection),
}

impl Connecting {
    fn start(nic: Arc<Nic>, address: SocketAddr, now: Instant) -> NetResult<Self> {
        let state = State::open(address, now)?;
        Ok(Self { nic, address, state, since: now, last_call: now })
    }

    fn advance(mut self, token: Token, now: Instant) -> NetResult<Progress> {
        match &self.state {
            State::Unreachable { retry_at, .. } if now < *retry_at => return self.pending(now),
            State::Unreachable { .. } => {
                self.state = State::open(self.address, now)?;
                return self.pending(now);
            }
            State::Socket(socket) => match is_connected(socket) {
                Ok(true) => {
                    let stream = socket.try_clone().map_err(|error| error.to_string())?;
                    self.state = self.handshake(TcpStream::from(stream), token)?;
                }
                Ok(false) => return self.pending(now),
                Err(error) => {
                    self.state = State::failed(error, now)?;
                    return self.pending(now);
                }
            },
            State::Handshake(..) | State::Endpoint(_) => {}
        }
        if let State::Handshake(exchange, _) = &mut self.state {
            let text = |error: std::io::Error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => "the peer closed the connection".to_owned(),
                _ => error.to_string(),
            };
            exchange.flush().map_err(text)?;
            let Some(hello) = exchange.receive().map_err(text)? else {
                // The peer's kernel has accepted the connection. The peer itself may be busy, or stopped, for
                // any time; the kernel finds out if it ends.
                return Ok(Progress::Pending(self));
            };
            if hello.token != token {
                return Err("authentication failed: the peer does not know the token".to_owned());
            }
            if let State::Handshake(exchange, connection) = self.state {
                self.nic.connected(&connection, &hello, exchange.stream)?;
                self.state = State::Endpoint(connection);
            }
        }
        match self.state {
            State::Endpoint(connection) if self.nic.is_established(&connection)? => {
                Ok(Progress::Connected(connection))
            }
            // As above, the peer may be busy or stopped for any time.
            _ => Ok(Progress::Pending(self)),
        }
    }

    /// Sends the message of this side.
    fn handshake(&self, stream: TcpStream, token: Token) -> NetResult<State> {
        keep_alive(&stream, self.nic.options.timeout).map_err(|error| error.to_string())?;
        let mut exchange = Exchange::new(stream);
        let connection = self.nic.add_connection(Direction::Send)?;
        exchange.send(&self.nic.hello(&connection, token));
        Ok(State::Handshake(exchange, connection))
    }

    fn pending(self, now: Instant) -> NetResult<Progress> {
        let timeout = self.nic.options.timeout;
        if now < self.since + timeout {
            return Ok(Progress::Pending(self));
        }
        let (seconds, ip) = (timeout.as_secs(), self.address.ip());
        Err(match self.state {
            State::Unreachable { error, .. } => format!("timed out after {seconds} s: {error}"),
            _ => format!("timed out after {seconds} s, {ip} does not answer"),
        })
    }
}

impl State {
    /// Begins to connect.
    fn open(address: SocketAddr, now: Instant) -> NetResult<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = || {
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
            match rustix::net::connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
                Err(error) => Err(error),
            }
        };
        open().map_or_else(|error| Self::failed(error, now), |socket| Ok(Self::Socket(socket)))
    }

    /// What follows an error of the kernel: another attempt, if the host cannot be reached.
    fn failed(error: Errno, now: Instant) -> NetResult<Self> {
        match error {
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::TIMEDOUT => {
                Ok(Self::Unreachable { error, retry_at: now + RETRY_INTERVAL })
            }
            error => Err(error.to_string()),
        }
    }
}

/// Whether the kernel has established a connection.
fn is_connected(socket: &OwnedFd) -> Result<bool, Errno> {
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&no_wait)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    rustix::net::sockopt::socket_error(socket)?.map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreachable_hosts_are_tried_again() {
        let now = Instant::now();
        for error in [Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::TIMEDOUT] {
            let state = State::failed(error, now);
            assert!(matches!(state, Ok(State::Unreachable { retry_at, .. }) if retry_at > now));
        }
        // The listener exists before its handle is sent, so that its process has ended.
        assert!(State::failed(Errno::CONNREFUSED, now).is_err());
    }

    #[test]
    fn a_closed_port_is_an_error() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let failed = match State::open(closed, Instant::now()) {
            Ok(State::Socket(socket)) => loop {
                match is_connected(&socket) {
                    Ok(false) => std::thread::yield_now(),
                    other => break other.is_err(),
                }
            },
            other => other.is_err(),
        };
        assert!(failed);
    }
}
