//! The connections from one rank. A message goes into the buffer of the matching posted receive, or
//! into the unexpected-message queue until one is posted.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use super::PeerQueue;
use super::reader::{PendingStripe, ReadBuffer, ReadResult, ReadStatus, Reader};
use crate::locks::lock;
use crate::matching::MatchResult;
use crate::network::{Report, SharedState, UserRecv, alloc_unexpected};
use crate::tcp::frame::{HEADER_BYTES, Header, stripe};

/// Bytes read from one peer before the others get a turn.
const READ_QUANTUM: usize = 4 << 20;

/// Index of the connection that this rank opened and the peer may send over. Connections after it
/// carry stripes only.
pub const LOCAL_CONN: usize = 1;

/// Connections from a rank.
#[derive(Default)]
pub struct Incoming {
    /// The peer's first connection, the one this rank opened, and the peer's further connections.
    conns: Vec<Option<Reader>>,
    /// Which of the first two carries the headers, once known.
    header_conn: Option<usize>,
    messages: HashMap<u64, PartialMessage>,
    next: u64,
}

struct PartialMessage {
    comm_id: u64,
    buffer: RecvBuffer,
    /// Stripes still to arrive.
    stripes_left: usize,
}

/// The destination of a message's payload.
pub enum RecvBuffer {
    /// The memory of a posted receive.
    User(UserRecv),
    /// Buffered, because no receive was posted.
    Unexpected(Vec<u8>),
    /// The payload is dropped.
    Discard,
}

impl RecvBuffer {
    /// The memory, if the socket may be read directly into it.
    pub fn direct(&mut self, at: usize, left: usize) -> Option<&mut [u8]> {
        match self {
            Self::User(recv) => recv.buffer.direct(at, left),
            Self::Unexpected(bytes) => bytes.get_mut(at..at + left),
            Self::Discard => None,
        }
    }

    /// Copies or reduces payload bytes into the destination at offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Self::User(recv) = self {
            recv.buffer.write(at, bytes);
        } else if let Some(into) = self.direct(at, bytes.len()) {
            into.copy_from_slice(bytes);
        }
    }
}

/// What a read step needs beside the connections.
pub struct ReadCtx<'a> {
    pub queue: &'a Mutex<PeerQueue>,
    pub shared: &'a SharedState,
    /// No message is started while there are this many bytes of unexpected messages.
    pub limit: u64,
    pub report: &'a mut Report,
}

impl ReadCtx<'_> {
    /// Headers are read while a receive is posted and the unexpected-message queue is not full.
    fn wants_header(&self) -> bool {
        let queue = lock(self.queue);
        queue.has_posted() && queue.unexpected_bytes() < self.limit
    }
}

impl Incoming {
    /// Adds a connection at its position.
    pub fn add(&mut self, conn: usize, stream: Arc<TcpStream>) {
        if self.conns.len() <= conn {
            self.conns.resize_with(conn + 1, || None);
        }
        let (buffer, stripes) = (ReadBuffer::default(), VecDeque::new());
        self.conns[conn] = Some(Reader { stream, buffer, stripes });
    }

    /// The first connection that the peer opened.
    pub fn peer_initiated(&self) -> Option<Arc<TcpStream>> {
        self.conns.first()?.as_ref().map(|reader| reader.stream.clone())
    }

    /// Reads until a message completes, the quantum is used up or the sockets are drained. Starts no
    /// message while the unexpected-message queue is full. Returns whether anything was read.
    pub fn read(&mut self, ctx: &mut ReadCtx<'_>) -> Result<bool, String> {
        let mut quantum = READ_QUANTUM;
        for conn in 0..self.conns.len() {
            loop {
                let status = match self.step(conn, ctx) {
                    Err(_) if self.is_redundant(conn) => {
                        self.conns[conn] = None;
                        ReadStatus::WouldBlock
                    }
                    status => status?,
                };
                match status {
                    ReadStatus::WouldBlock => break,
                    ReadStatus::Read(count) => quantum = quantum.saturating_sub(count),
                    ReadStatus::MessageDone => return Ok(true),
                }
                if quantum == 0 {
                    return Ok(true);
                }
            }
        }
        Ok(quantum < READ_QUANTUM)
    }

    /// One step with at most one system call.
    fn step(&mut self, conn: usize, ctx: &mut ReadCtx<'_>) -> ReadResult {
        let carries_headers = self.carries_headers(conn);
        let Some(reader) = &mut self.conns[conn] else { return Ok(ReadStatus::WouldBlock) };
        let Some(stripe) = reader.stripes.front_mut() else {
            if !carries_headers || !ctx.wants_header() {
                return Ok(ReadStatus::WouldBlock);
            }
            if let Some(header) = reader.buffer.header() {
                let invalid = "protocol error: invalid message header";
                let header = Header::decode(&header).ok_or(invalid)?;
                self.header_conn = Some(conn);
                return self.begin(conn, header, ctx);
            }
            return reader.buffer.fill(&reader.stream);
        };
        let missing = "protocol error: a stripe arrived without its message";
        let message = self.messages.get_mut(&stripe.message).ok_or(missing)?;
        let (status, count) =
            reader.buffer.read_into(&reader.stream, &mut message.buffer, stripe.at, stripe.left)?;
        stripe.at += count;
        stripe.left -= count;
        ctx.report.add_moved(message.comm_id, count);
        if stripe.left > 0 {
            return Ok(status);
        }
        let id = stripe.message;
        reader.stripes.pop_front();
        message.stripes_left -= 1;
        Ok(self.finish(id, ctx))
    }

    /// Whether the peer's remaining messages may arrive on the other connection. A rank that exits
    /// closes both, with data possibly in flight.
    fn is_redundant(&self, conn: usize) -> bool {
        let other = |other: usize| self.conns.get(other).is_some_and(Option::is_some);
        conn <= LOCAL_CONN && self.header_conn != Some(conn) && other(LOCAL_CONN - conn)
    }

    /// Only the connection that the peer chose carries headers.
    fn carries_headers(&self, conn: usize) -> bool {
        conn <= LOCAL_CONN && self.header_conn.is_none_or(|chosen| chosen == conn)
    }

    /// Starts a message.
    fn begin(&mut self, first: usize, header: Header, ctx: &mut ReadCtx<'_>) -> ReadResult {
        let (length, comm_id) = (header.envelope.length as usize, header.envelope.key.comm_id);
        self.next += 1;
        let id = self.next;
        let status = || ctx.shared.comm_status(comm_id);
        let buffer = match lock(ctx.queue).arrive(id, header.envelope, None, status) {
            MatchResult::Deliver(recv, _) => RecvBuffer::User(recv),
            MatchResult::Queued => {
                let none = || format!("out of memory for an unexpected message of {length} bytes");
                RecvBuffer::Unexpected(alloc_unexpected(length).ok_or_else(none)?)
            }
            MatchResult::Discard(_, error) => {
                ctx.report.add_error(comm_id, error);
                RecvBuffer::Discard
            }
        };
        let stripes = usize::from(header.stripes);
        // Nothing is sent for an empty stripe.
        let ranges = (0..stripes).map(|i| stripe(length, i, stripes));
        let ranges: Vec<_> = ranges.enumerate().filter(|(_, range)| !range.is_empty()).collect();
        self.messages.insert(id, PartialMessage { comm_id, buffer, stripes_left: ranges.len() });
        for (index, range) in ranges {
            // All connections exist before the first message that uses them.
            let reader = self.conns.get_mut(conn_index(index, first)).and_then(Option::as_mut);
            let missing =
                "protocol error: a stripe is announced on a connection that does not exist";
            let stripe = PendingStripe { message: id, at: range.start, left: range.len() };
            reader.ok_or(missing)?.stripes.push_back(stripe);
        }
        Ok(self.finish(id, ctx))
    }

    /// Completes a message if it has arrived.
    fn finish(&mut self, id: u64, ctx: &mut ReadCtx<'_>) -> ReadStatus {
        let Entry::Occupied(message) = self.messages.entry(id) else { return ReadStatus::Read(0) };
        if message.get().stripes_left > 0 {
            return ReadStatus::Read(0);
        }
        let PartialMessage { comm_id, buffer, .. } = message.remove();
        match buffer {
            RecvBuffer::User(recv) => ctx.report.completed.push((comm_id, recv.request)),
            RecvBuffer::Unexpected(bytes) => {
                let supplied = lock(ctx.queue).supply(id, bytes);
                if let MatchResult::Deliver(mut recv, bytes) = supplied {
                    recv.buffer.write(0, &bytes.unwrap_or_default());
                    ctx.report.completed.push((comm_id, recv.request));
                }
            }
            RecvBuffer::Discard => {}
        }
        ReadStatus::MessageDone
    }

    /// The connections to poll for input.
    pub fn awaited(&self, has_posted: bool) -> impl Iterator<Item = &Arc<TcpStream>> {
        let wanted = move |(i, conn): &(usize, &Option<Reader>)| {
            let wants_header = has_posted && self.carries_headers(*i);
            conn.as_ref().is_some_and(|reader| wants_header || !reader.stripes.is_empty())
        };
        let wanted = self.conns.iter().enumerate().filter(wanted);
        wanted.filter_map(|(_, conn)| Some(&conn.as_ref()?.stream))
    }

    /// Closes all connections. Posted receives stay pending.
    pub fn close_all(&mut self) {
        self.conns.clear();
        self.header_conn = None;
    }

    /// Releases the memory of a communicator. Messages in flight are discarded.
    pub fn cancel(&mut self, comm_id: u64) {
        for message in self.messages.values_mut().filter(|m| m.comm_id == comm_id) {
            if let RecvBuffer::User(_) = message.buffer {
                message.buffer = RecvBuffer::Discard;
            }
        }
    }
}

/// The position of the connection with this index if the first one is at `first`.
pub fn conn_index(index: usize, first: usize) -> usize {
    if index == 0 { first } else { index + LOCAL_CONN }
}

/// The read buffer holds at least a header.
const _: () = assert!(HEADER_BYTES <= super::reader::BUFFER_BYTES);
