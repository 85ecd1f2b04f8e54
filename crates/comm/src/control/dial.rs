//! Opens an authenticated connection to a rank, within a deadline.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use regatta_wire::clock;
use regatta_wire::link::{Link, LinkEvent, Role, Timing};
use regatta_wire::secret::{Secret, random_bytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// How often cancellation is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the first attempt to connect takes; each further one takes twice as long. A full backlog
/// drops a connection request, which the kernel repeats only after a second.
const FIRST_ATTEMPT: Duration = Duration::from_millis(200);

/// The target and options of a connection.
pub struct Dial<'a> {
    /// The remote address.
    pub to: SocketAddr,
    /// The local address to bind to.
    pub from: Option<IpAddr>,
    /// The job's secret.
    pub secret: &'a Secret,
    /// The timeouts of the connection.
    pub timing: Timing,
    /// The deadline.
    pub until: Instant,
    /// Whether the attempt was cancelled.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// A connection whose remote end has authenticated.
pub struct AuthConn {
    /// The socket, in non-blocking mode.
    pub stream: TcpStream,
    /// The link after its handshake.
    pub link: Link,
    /// Frames that arrived with the reply to a request.
    pub unread: Vec<Vec<u8>>,
}

/// Why a connection failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The peer does not respond, or not yet.
    #[error("{0}")]
    Unreachable(String),
    /// The peer failed to authenticate or rejected this rank.
    #[error("{0}")]
    Rejected(String),
}

impl Dial<'_> {
    /// Connects and completes the handshake.
    pub fn open(&self) -> Result<AuthConn, DialError> {
        let unreachable = |error: std::io::Error| DialError::Unreachable(error.to_string());
        let stream = self.connect().map_err(unreachable)?;
        let nonce = random_bytes().map_err(unreachable)?;
        let link = Link::new(Role::Initiator, self.secret, nonce, self.timing, clock::now());
        let mut conn = AuthConn { stream, link, unread: Vec::new() };
        let ready = |steps: &mut Vec<LinkEvent>| steps.contains(&LinkEvent::Ready).then_some(());
        self.exchange(&mut conn, &mut [0; 4 << 10], true, ready)?;
        Ok(conn)
    }

    /// Sends a message and waits for the reply.
    pub fn request(&self, conn: &mut AuthConn, message: &[u8]) -> Result<Vec<u8>, DialError> {
        conn.link.send(message);
        self.exchange(conn, &mut [0; 64 << 10], true, first_frame)
    }

    /// Sends the last control message of a data connection. Reads nothing beyond the reply and sends
    /// no heartbeats, because the peer treats everything after the reply as data.
    pub fn request_final(&self, conn: &mut AuthConn, message: &[u8]) -> Result<Vec<u8>, DialError> {
        conn.link.send(message);
        self.exchange(conn, &mut [0; 1], false, first_frame)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut attempt = FIRST_ATTEMPT;
        loop {
            let error = match self.connect_once(attempt) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let expired = clock::now() >= self.until || (self.cancelled)();
            match error.kind() {
                _ if expired => return Err(error),
                ErrorKind::TimedOut => attempt *= 2,
                // The network may be back in a moment.
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                _ => return Err(error),
            }
        }
    }

    fn connect_once(&self, limit: Duration) -> std::io::Result<TcpStream> {
        let start = clock::now();
        let family = if self.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(from) = self.from.filter(|from| from.is_ipv4() == self.to.is_ipv4()) {
            bind(&socket, &SocketAddr::new(from, 0))?;
        }
        let stream = TcpStream::from(socket);
        set_socket_options(&stream, self.timing.lost_after);
        match connect(&stream, &self.to) {
            Ok(()) => return Ok(stream),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        while !self.wait(&stream, PollFlags::OUT)? {
            if clock::elapsed(start) >= limit {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        match sockopt::socket_error(&stream)? {
            Ok(()) => Ok(stream),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes pending data and reads until `found` returns a result.
    fn exchange<T>(
        &self,
        conn: &mut AuthConn,
        buffer: &mut [u8],
        heartbeats: bool,
        found: impl Fn(&mut Vec<LinkEvent>) -> Option<T>,
    ) -> Result<T, DialError> {
        let unreachable = |error: std::io::Error| DialError::Unreachable(error.to_string());
        let mut steps = Vec::new();
        loop {
            write_pending(&mut conn.stream, &mut conn.link).map_err(unreachable)?;
            match conn.stream.read(buffer) {
                Ok(0) => {
                    return Err(DialError::Unreachable("connection closed by the peer".to_owned()));
                }
                Ok(count) => {
                    let now = clock::now();
                    let received = conn.link.receive(&buffer[..count], now, &mut steps);
                    // Tells the peer the reason for a rejection.
                    write_pending(&mut conn.stream, &mut conn.link).map_err(unreachable)?;
                    received.map_err(|error| DialError::Rejected(error.to_string()))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(&conn.stream, PollFlags::IN).map_err(unreachable)?;
                    if heartbeats {
                        conn.link.heartbeat(clock::now());
                    }
                }
                Err(error) => return Err(unreachable(error)),
            }
            if let Some(found) = found(&mut steps) {
                conn.unread.extend(std::iter::from_fn(|| first_frame(&mut steps)));
                return Ok(found);
            }
        }
    }

    /// Polls for a short time. Returns whether the socket is ready.
    fn wait(&self, stream: &TcpStream, flags: PollFlags) -> std::io::Result<bool> {
        if clock::now() >= self.until || (self.cancelled)() {
            return Err(std::io::Error::new(ErrorKind::TimedOut, "timed out"));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()) };
        match poll(&mut [PollFd::new(stream, flags)], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Takes the first frame.
fn first_frame(steps: &mut Vec<LinkEvent>) -> Option<Vec<u8>> {
    let at = steps.iter().position(|step| matches!(step, LinkEvent::Frame(_)))?;
    match steps.remove(at) {
        LinkEvent::Frame(frame) => Some(frame),
        LinkEvent::Ready => None,
    }
}

/// Writes as much of a link's data as the socket accepts; the rest is written later.
fn write_pending(stream: &mut impl Write, link: &mut Link) -> std::io::Result<()> {
    while !link.pending().is_empty() {
        match stream.write(link.pending()) {
            Ok(count) => link.advance(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets TCP_NODELAY and keepalive, so the kernel detects a dead path while the connection is idle.
/// Buffer sizes are left to the kernel's autotuning, which exceeds what may be requested on most
/// systems.
pub fn set_socket_options(stream: &TcpStream, lost_after: Duration) {
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().max(1));
    let (idle, interval) = (seconds(lost_after / 2), seconds(lost_after / 8));
    let probes = lost_after.saturating_sub(idle).as_secs() / interval.as_secs();
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, probes.clamp(1, 100) as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts a connection slowly and returns all data that follows the reply.
    fn accept_slowly(listener: std::net::TcpListener, secret: Secret, timing: Timing) -> Vec<u8> {
        let (mut stream, _) = listener.accept().unwrap();
        let now = clock::now();
        let mut link = Link::new(Role::Responder, &secret, random_bytes().unwrap(), timing, now);
        let (mut steps, mut buffer) = (Vec::new(), [0; 4096]);
        let flush = |link: &mut Link, stream: &mut TcpStream| {
            stream.write_all(link.pending()).unwrap();
            link.advance(link.pending().len());
        };
        while first_frame(&mut steps).is_none() {
            flush(&mut link, &mut stream);
            let count = stream.read(&mut buffer).unwrap();
            link.receive(&buffer[..count], clock::now(), &mut steps).unwrap();
        }
        // For several heartbeats.
        std::thread::sleep(Duration::from_millis(100));
        link.send(b"accepted");
        flush(&mut link, &mut stream);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    }

    #[test]
    fn only_data_follows_the_final_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let (secret, limit) = (Secret::generate().unwrap(), Duration::from_secs(10));
        let beat = Duration::from_millis(20);
        let timing = Timing { handshake: limit, heartbeat: beat, lost_after: limit };
        let theirs = secret.clone();
        let other = std::thread::spawn(move || accept_slowly(listener, theirs, timing));
        let until = clock::now() + limit;
        let dial = Dial { to, from: None, secret: &secret, timing, until, cancelled: &|| false };
        let mut conn = dial.open().unwrap();
        assert_eq!(dial.request_final(&mut conn, b"hello").unwrap(), b"accepted");
        conn.stream.write_all(b"message").unwrap();
        drop(conn);
        assert_eq!(other.join().unwrap(), b"message");
    }
}
