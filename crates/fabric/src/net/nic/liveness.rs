//! Whether the peers still exist: their TCP connections, which carry no data.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::sockopt;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(50);
/// Events of a check.
const EVENTS: usize = 32;

/// The connections that are watched.
pub struct Liveness {
    epoll: OwnedFd,
    next: Option<Instant>,
}

impl Liveness {
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, next: None })
    }

    /// Watches a connection until it is closed.
    pub fn watch(&self, stream: &TcpStream, connection: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(connection.into());
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, stream, data, flags)?)
    }

    pub fn forget(&self, stream: &TcpStream) {
        // Fails if it is not watched any more.
        let _ = epoll::delete(&self.epoll, stream);
    }

    /// Connections with something to read, if the time for a check has come.
    pub fn check(&mut self, now: Instant) -> Option<Vec<u32>> {
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + INTERVAL);
        let mut events = Vec::with_capacity(EVENTS);
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        // An interrupted check is made up for by the next.
        let _ = epoll::wait(&self.epoll, spare, Some(&timeout));
        Some(events.iter().map(|event| event.data.u64() as u32).collect())
    }
}

/// Whether a connection has ended: `Err` with the reason, if it was not closed by the peer.
pub fn has_ended(mut stream: &TcpStream) -> io::Result<bool> {
    let mut bytes = [0; 64];
    match stream.read(&mut bytes) {
        Ok(0) => Ok(true),
        // Peers send nothing after the handshake.
        Ok(_) => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(false)
        }
        // The peer was killed, with data in its socket or without.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
        Err(error) => Err(error),
    }
}

/// The kernel probes an idle connection, and gives it up if the peer's does not answer in time. A process
/// that is stopped or busy is no problem: its kernel answers.
pub fn keep_alive(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let idle = (timeout / 3).max(Duration::from_secs(1));
    let interval = (timeout / 6).max(Duration::from_secs(1));
    let probes = timeout.saturating_sub(idle).as_secs().div_ceil(interval.as_secs().max(1)).max(1);
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, u32::try_from(probes).unwrap_or(127).min(127))?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}
