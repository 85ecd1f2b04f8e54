//! The sender's side of the handshake.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Connections that are being established. The host program calls `connect` again with the same handle
/// until there is a connection; a pointer in the handle could be forged by a peer, so they are found by the
/// handle's address and token.
#[derive(Default)]
pub struct Connectors(Mutex<HashMap<(usize, Token), Connecting>>);

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
    Handshake(Exchange, Connection),
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
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.retain(|_, one| now < one.last_call + ABANDONED);
        let key = (identity, handle.token);
        let mut connecting = match all.remove(&key) {
            Some(connecting) => connecting,
            None => Connecting::start(nic()?, handle.address, now)?,
        };
        connecting.last_call = now;
        let described = |why: String| format!("cannot connect to {}: {why}", handle.address);
        match connecting.advance(handle.token, now).map_err(described)? {
            Progress::Connected(connection) => Ok(Some(connection)),
            Progress::Pending(connecting) => {
                all.insert(key, connecting);
                Ok(None)
            }
        }
    }
}

enum Progress {
    Pending(Connecting),
    Connected(Connection),
}

impl Connecting {
    fn start(nic: Arc<Nic>, address: SocketAddr, now: Instant) -> NetResult<Self> {
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
        let socket = open().map_err(|error| format!("cannot connect to {address}: {error}"))?;
        let state = State::Socket(socket);
        Ok(Self { nic, address, state, since: now, last_call: now })
    }

    fn advance(mut self, token: Token, now: Instant) -> NetResult<Progress> {
        if let State::Socket(socket) = &self.state {
            if !is_connected(socket)? {
                return self.pending(now);
            }
            let stream = socket.try_clone().map_err(|error| error.to_string())?;
            let stream = TcpStream::from(stream);
            keep_alive(&stream, self.nic.options.timeout).map_err(|error| error.to_string())?;
            let mut exchange = Exchange::new(stream);
            let connection = self.nic.add_connection(Direction::Send)?;
            exchange.send(&self.nic.hello(&connection, token));
            self.state = State::Handshake(exchange, connection);
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
                return Ok(Progress::Connected(connection));
            }
        }
        Err("no handshake".to_owned())
    }

    fn pending(self, now: Instant) -> NetResult<Progress> {
        let timeout = self.nic.options.timeout;
        if now >= self.since + timeout {
            let seconds = timeout.as_secs();
            return Err(format!(
                "timed out after {seconds} s, {} does not answer",
                self.address.ip()
            ));
        }
        Ok(Progress::Pending(self))
    }
}

/// Whether the kernel has established a connection.
fn is_connected(socket: &OwnedFd) -> NetResult<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&no_wait)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    match rustix::net::sockopt::socket_error(socket) {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) | Err(error) => Err(error.to_string()),
    }
}
