//! One connection: its socket and its link, and what reading and writing make of them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use mio::net::TcpStream;

use super::ListenerId;
use regatta_wire::link::{Link, LinkError, Step};

/// How often one connection is read before the others have their turn.
const READS_IN_TURN: usize = 16;

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Since this time.
    Connecting(Instant),
    Open,
    /// Nobody is interested any more: what is queued goes out, if it does so until this time.
    Closing(Instant),
}

/// How a turn of reading ended.
#[derive(Debug)]
pub(super) enum Turn {
    /// There is no more for now.
    Drained,
    /// There may be more.
    More,
    /// There will never be more.
    Ended,
    /// The link is over.
    Failed(LinkError),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    pub(super) link: Link,
    pub(super) peer: SocketAddr,
    pub(super) listener: Option<ListenerId>,
    pub(super) phase: Phase,
    /// The socket took no more; it will tell when it does.
    pub(super) blocked: bool,
    /// Listed to be flushed.
    pub(super) listed: bool,
    /// The other side has ended its half, so reading must go on until that is read.
    pub(super) hung_up: bool,
    /// It cannot be written to any more.
    pub(super) broken: bool,
}

impl Conn {
    pub(super) fn new(
        stream: TcpStream,
        link: Link,
        peer: SocketAddr,
        listener: Option<ListenerId>,
        phase: Phase,
    ) -> Self {
        Self {
            stream,
            link,
            peer,
            listener,
            phase,
            blocked: false,
            listed: false,
            hung_up: false,
            broken: false,
        }
    }

    /// Whether something waits to be written, could be, and is not yet going to be.
    pub(super) fn has_to_be_listed(&self) -> bool {
        let could_be = self.phase == Phase::Open && !self.blocked && !self.listed;
        could_be && !self.link.pending().is_empty()
    }

    /// Accepted, and the other side has not yet proved itself.
    pub(super) fn is_stranger(&self) -> bool {
        self.listener.is_some() && !self.link.is_ready()
    }

    /// Whether the socket is connected by now; an error says that it never will be.
    pub(super) fn finish_connecting(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {
                self.stream.set_nodelay(true)?;
                self.phase = Phase::Open;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads what is there, up to a turn's share, and adds what it means to `steps`.
    pub(super) fn read(&mut self, buffer: &mut [u8], now: Instant, steps: &mut Vec<Step>) -> Turn {
        for _ in 0..READS_IN_TURN {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Turn::Ended,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.broken => {
                    return Turn::Drained;
                }
                Err(_) => return Turn::Ended,
            };
            // While it closes, reading is only to not reset the connection under what we sent.
            if !matches!(self.phase, Phase::Closing(_))
                && let Err(error) = self.link.receive(&buffer[..count], now, steps)
            {
                return Turn::Failed(error);
            }
            // There was less than there is room for: what comes later will be told.
            if count < buffer.len() && !self.hung_up && !self.broken {
                return Turn::Drained;
            }
        }
        Turn::More
    }

    /// Writes what is queued, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.blocked && !self.link.pending().is_empty() {
            match self.stream.write(self.link.pending()) {
                Ok(count) => self.link.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) => return Err(error),
            }
        }
        if matches!(self.phase, Phase::Closing(_)) && self.link.pending().is_empty() {
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}
