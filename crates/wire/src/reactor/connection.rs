//! One connection: a socket and its link.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use mio::net::TcpStream;

use super::{ConnId, ListenerId};
use crate::link::{Link, LinkError, LinkEvent};

/// Maximum number of reads per connection and poll.
const MAX_READS: usize = 16;

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnPhase {
    /// Connecting since this time.
    Connecting(Instant),
    Open,
    /// Closed by this side; queued data is sent until this deadline.
    Closing(Instant),
}

/// Result of a round of reads.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    /// No more data for now.
    WouldBlock,
    /// More data may be available.
    More,
    /// The peer closed the connection, or the socket failed.
    Eof,
    Failed(LinkError),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) link: Link,
    pub(super) peer: SocketAddr,
    pub(super) listener: Option<ListenerId>,
    pub(super) phase: ConnPhase,
    /// The last write would have blocked.
    pub(super) blocked: bool,
    /// Whether it is in the flush queue.
    pub(super) flush_queued: bool,
    /// The peer closed its side; read until end of file.
    pub(super) peer_closed: bool,
    /// Writing failed.
    pub(super) write_failed: bool,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        link: Link,
        peer: SocketAddr,
        listener: Option<ListenerId>,
        phase: ConnPhase,
    ) -> Self {
        Self {
            stream,
            link,
            peer,
            listener,
            phase,
            blocked: false,
            flush_queued: false,
            peer_closed: false,
            write_failed: false,
        }
    }

    /// Queues the connection for flushing, once.
    pub(super) fn queue_flush(&mut self, id: ConnId, queue: &mut Vec<ConnId>) {
        if !std::mem::replace(&mut self.flush_queued, true) {
            queue.push(id);
        }
    }

    /// Queues it if data is pending and can be written.
    pub(super) fn queue_pending(&mut self, id: ConnId, queue: &mut Vec<ConnId>) {
        if self.phase == ConnPhase::Open && !self.blocked && !self.link.pending().is_empty() {
            self.queue_flush(id, queue);
        }
    }

    /// Whether it was accepted and the peer has not authenticated.
    pub(super) fn is_unauthenticated(&self) -> bool {
        self.listener.is_some() && !self.link.is_ready()
    }

    /// Whether the socket is connected by now.
    pub(super) fn finish_connecting(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {
                self.stream.set_nodelay(true)?;
                self.phase = ConnPhase::Open;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a limited number of times and appends the resulting events.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
        link_events: &mut Vec<LinkEvent>,
    ) -> ReadOutcome {
        for _ in 0..MAX_READS {
            let count = match self.stream.read(buffer) {
                Ok(0) => return ReadOutcome::Eof,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.write_failed => {
                    return ReadOutcome::WouldBlock;
                }
                Err(_) => return ReadOutcome::Eof,
            };
            // While closing, data is read and discarded: unread data would reset the connection.
            if !matches!(self.phase, ConnPhase::Closing(_))
                && let Err(error) = self.link.receive(&buffer[..count], now, link_events)
            {
                return ReadOutcome::Failed(error);
            }
            // A short read: the socket is drained, and mio reports new data.
            if count < buffer.len() && !self.peer_closed && !self.write_failed {
                return ReadOutcome::WouldBlock;
            }
        }
        ReadOutcome::More
    }

    /// Writes pending data until the socket would block.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.blocked && !self.link.pending().is_empty() {
            match self.stream.write(self.link.pending()) {
                Ok(count) => self.link.advance(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) => return Err(error),
            }
        }
        if matches!(self.phase, ConnPhase::Closing(_)) && self.link.pending().is_empty() {
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}
