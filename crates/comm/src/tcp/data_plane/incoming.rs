//! The connections from one rank. A message goes into the buffer of the matching posted receive, or
//! into the unexpected-message queue until one is posted.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;

use super::reader::{ReadResult, ReadStatus, Reader};
use super::recv_buffer::{PostedRecv, RecvBuffer};
use super::{CommTable, ProtocolError};
use crate::tcp::frame::{HEADER_BYTES, Header, stripe};

/// Bytes read from one peer before the others get a turn.
const READ_QUANTUM: usize = 4 << 20;

/// Index of the connection that this rank opened and the peer may send over. Connections after it
/// carry stripes only.
const LOCAL_CONN: usize = 1;

/// Connections from a rank.
#[derive(Default)]
pub struct Incoming {
    /// The peer's first connection, the one this rank opened, and the peer's further connections.
    conns: Vec<Option<Reader>>,
    /// Which of the first two carries the headers, once known.
    header_conn: Option<usize>,
    messages: HashMap<u64, PartialMessage>,
    /// The unexpected-message queue, in order of arrival.
    unexpected: VecDeque<u64>,
    unexpected_bytes: usize,
    posted: VecDeque<PostedRecv>,
    next: u64,
}

struct PartialMessage {
    header: Header,
    buffer: RecvBuffer,
    /// Stripes still to arrive.
    stripes_left: usize,
    /// The matching receive, if it is posted.
    posted: Option<PostedRecv>,
}

impl Incoming {
    /// Adds a connection that the peer opened, with its index.
    pub fn add(&mut self, index: usize, stream: TcpStream) {
        self.insert(conn_index(index, 0), Arc::new(stream));
    }

    /// Adds the connection that this rank opened.
    pub fn add_local(&mut self, stream: Arc<TcpStream>) {
        self.insert(LOCAL_CONN, stream);
    }

    fn insert(&mut self, conn: usize, stream: Arc<TcpStream>) {
        if self.conns.len() <= conn {
            self.conns.resize_with(conn + 1, || None);
        }
        self.conns[conn] = Some(Reader::new(stream));
    }

    /// The first connection that the peer opened.
    pub fn peer_initiated(&self) -> Option<Arc<TcpStream>> {
        self.conns.first()?.as_ref().map(|reader| reader.stream.clone())
    }

    /// Posts a receive.
    pub fn post(&mut self, posted: PostedRecv, comms: &mut CommTable) {
        let matches = |id: &u64| self.messages.get(id).is_some_and(|m| m.header.key == posted.key);
        let Some(at) = self.unexpected.iter().position(matches) else {
            self.posted.push_back(posted);
            return;
        };
        let Some(id) = self.unexpected.remove(at) else { return };
        if let Some(message) = self.messages.get_mut(&id) {
            let length = message.header.length as usize;
            self.unexpected_bytes = self.unexpected_bytes.saturating_sub(length);
            if check_match(&message.header, &posted, comms) {
                message.posted = Some(posted);
            } else {
                message.buffer = RecvBuffer::Discard;
            }
        }
        self.finish(id, comms);
    }

    /// Whether the unexpected-message queue has reached `limit` bytes.
    pub fn is_full(&self, limit: usize) -> bool {
        self.unexpected_bytes >= limit
    }

    /// Reads until a message completes, the quantum is used up or the sockets are drained. Starts no
    /// message while the unexpected-message queue is full. Returns whether anything was read.
    pub fn read(&mut self, comms: &mut CommTable, limit: usize) -> Result<bool, String> {
        let mut quantum = READ_QUANTUM;
        for conn in 0..self.conns.len() {
            loop {
                let status = match self.step(conn, comms, limit) {
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
    fn step(&mut self, conn: usize, comms: &mut CommTable, limit: usize) -> ReadResult {
        let wants_header = self.wants_header(conn) && !self.is_full(limit);
        let Some(reader) = self.conns.get_mut(conn).and_then(Option::as_mut) else {
            return Ok(ReadStatus::WouldBlock);
        };
        let Some(stripe) = reader.stripes.front_mut() else {
            if !wants_header {
                return Ok(ReadStatus::WouldBlock);
            }
            if let Some(header) = reader.buffer.header() {
                let invalid = "protocol error: invalid message header";
                let header = Header::decode(&header).ok_or(invalid)?;
                self.header_conn = Some(conn);
                return self.begin(conn, header, comms);
            }
            return match reader.buffer.fill(&reader.stream) {
                Err(_) if self.other_conn_may_carry(conn) => {
                    self.conns[conn] = None;
                    Ok(ReadStatus::WouldBlock)
                }
                filled => filled,
            };
        };
        let Some(message) = self.messages.get_mut(&stripe.message) else {
            return Err("protocol error: a stripe arrived without its message".to_owned());
        };
        let (status, count) =
            reader.buffer.read_into(&reader.stream, &mut message.buffer, stripe.at, stripe.left)?;
        stripe.at += count;
        stripe.left -= count;
        comms.add_bytes_moved(message.header.key.comm_id, count);
        if stripe.left > 0 {
            return Ok(status);
        }
        let id = stripe.message;
        reader.stripes.pop_front();
        message.stripes_left -= 1;
        Ok(self.finish(id, comms))
    }

    /// Whether the peer's remaining messages may arrive on the other connection.
    fn is_redundant(&self, conn: usize) -> bool {
        let other = |other: usize| self.conns.get(other).is_some_and(Option::is_some);
        conn <= LOCAL_CONN && self.header_conn != Some(conn) && other(LOCAL_CONN - conn)
    }

    /// All connections.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.conns.iter().flatten().map(|reader| &reader.stream)
    }

    /// Only the connection that the peer chose carries headers. They are read while a receive is
    /// posted.
    fn wants_header(&self, conn: usize) -> bool {
        let is_chosen = self.header_conn.is_none_or(|chosen| chosen == conn);
        conn <= LOCAL_CONN && is_chosen && !self.posted.is_empty()
    }

    /// Whether messages may still arrive on the other connection when this one is closed. A rank
    /// that exits closes both, with data possibly in flight.
    fn other_conn_may_carry(&self, conn: usize) -> bool {
        let other = self.conns.get(LOCAL_CONN - conn.min(LOCAL_CONN)).is_some_and(Option::is_some);
        self.header_conn.is_none() && conn <= LOCAL_CONN && other
    }

    /// Starts a message.
    fn begin(&mut self, first: usize, header: Header, comms: &mut CommTable) -> ReadResult {
        let length = header.length as usize;
        let found = self.posted.iter().position(|posted| posted.key == header.key);
        let posted = found.and_then(|at| self.posted.remove(at));
        self.next += 1;
        let id = self.next;
        let (buffer, posted) = match posted {
            Some(posted) if check_match(&header, &posted, comms) => {
                (posted.recv_buffer(), Some(posted))
            }
            Some(_) => (RecvBuffer::Discard, None),
            None if !comms.accept_unexpected(&header) => (RecvBuffer::Discard, None),
            None => {
                let buffer = RecvBuffer::Unexpected(alloc_unexpected(length)?);
                self.unexpected_bytes += length;
                self.unexpected.push_back(id);
                (buffer, None)
            }
        };
        let stripes = usize::from(header.stripes);
        // Nothing is sent for an empty stripe.
        let ranges = (0..stripes).map(|i| stripe(length, i, stripes));
        let ranges: Vec<_> = ranges.enumerate().filter(|(_, range)| !range.is_empty()).collect();
        self.messages
            .insert(id, PartialMessage { header, buffer, stripes_left: ranges.len(), posted });
        for (index, range) in ranges {
            // All connections exist before the first message that uses them.
            let reader = self.conns.get_mut(conn_index(index, first)).and_then(Option::as_mut);
            let missing =
                "protocol error: a stripe is announced on a connection that does not exist";
            reader.ok_or(missing)?.expect(id, range);
        }
        Ok(self.finish(id, comms))
    }

    /// Completes a message if it has arrived and is matched or discarded.
    fn finish(&mut self, id: u64, comms: &mut CommTable) -> ReadStatus {
        let complete = |m: &PartialMessage| {
            m.stripes_left == 0 && (m.posted.is_some() || matches!(m.buffer, RecvBuffer::Discard))
        };
        if !self.messages.get(&id).is_some_and(complete) {
            return ReadStatus::Read(0);
        }
        let Some(message) = self.messages.remove(&id) else { return ReadStatus::Read(0) };
        if let Some(posted) = message.posted {
            if let RecvBuffer::Unexpected(bytes) = &message.buffer {
                posted.recv_buffer().write(0, bytes);
            }
            comms.complete(posted.key.comm_id, posted.request);
        }
        ReadStatus::MessageDone
    }

    /// The connections to poll for input.
    pub fn awaited(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        let wanted = |(i, conn): &(usize, &Option<Reader>)| {
            conn.as_ref().is_some_and(|reader| !reader.stripes.is_empty() || self.wants_header(*i))
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
        self.posted.retain(|posted| posted.key.comm_id != comm_id);
        for message in self.messages.values_mut().filter(|m| m.header.key.comm_id == comm_id) {
            if message.posted.take().is_some() {
                message.buffer = RecvBuffer::Discard;
            }
        }
    }

    /// Closes a communicator and discards its unexpected messages.
    pub fn close(&mut self, comm_id: u64) {
        self.cancel(comm_id);
        let (messages, unexpected_bytes) = (&mut self.messages, &mut self.unexpected_bytes);
        self.unexpected.retain(|id| {
            let Some(message) = messages.get_mut(id) else { return false };
            if message.header.key.comm_id != comm_id {
                return true;
            }
            *unexpected_bytes = unexpected_bytes.saturating_sub(message.header.length as usize);
            message.buffer = RecvBuffer::Discard;
            false
        });
        self.messages.retain(|_, m| m.header.key.comm_id != comm_id || m.stripes_left > 0);
    }
}

/// The position of the connection with this index if the first one is at `first`.
fn conn_index(index: usize, first: usize) -> usize {
    if index == 0 { first } else { index + LOCAL_CONN }
}

/// Memory for an unexpected message. The length comes from the peer, so allocation may fail.
fn alloc_unexpected(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let none = |_| format!("out of memory for an unexpected message of {length} bytes");
    bytes.try_reserve_exact(length).map_err(none)?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Whether a message matches a posted receive. If not, records a protocol error.
pub fn check_match(header: &Header, posted: &PostedRecv, comms: &mut CommTable) -> bool {
    let key = posted.key;
    let error = if header.signature_hash != posted.signature_hash && !key.tagged {
        ProtocolError::CallMismatch { call: key.number }
    } else if header.length as usize != posted.length {
        let (sent, expected) = (header.length, posted.length as u64);
        ProtocolError::SizeMismatch { request: posted.request, sent, expected }
    } else {
        return true;
    };
    comms.set_protocol_error(key.comm_id, error);
    false
}

impl Reader {
    fn expect(&mut self, message: u64, range: std::ops::Range<usize>) {
        let (at, left) = (range.start, range.len());
        self.stripes.push_back(super::reader::PendingStripe { message, at, left });
    }
}

/// The read buffer holds at least a header.
const _: () = assert!(HEADER_BYTES <= super::reader::BUFFER_BYTES);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::tcp::frame::MessageKey;
    use crate::transport::{MatchKey, RequestId};

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// A rank that sends on one of two connections and exits loses no data.
    #[test]
    fn data_sent_before_both_connections_close_is_delivered() {
        for over_local in [false, true] {
            let ((theirs, mut far), (local, mut other)) = (pair(), pair());
            let mut incoming = Incoming::default();
            incoming.add(0, theirs);
            incoming.add_local(Arc::new(local));
            let key = MessageKey::new(1, MatchKey::Collective, 1);
            let header = Header { key, length: 3, signature_hash: 7, stripes: 1 };
            let sender = if over_local { &mut other } else { &mut far };
            sender.write_all(&[&header.encode()[..], b"abc"].concat()).unwrap();
            drop((far, other));
            let (mut comms, mut into) = (CommTable::default(), [0u8; 3]);
            incoming.post(PostedRecv::copy(key, 7, RequestId(1), &mut into), &mut comms);
            while comms.get(1).completed.is_empty() {
                incoming.read(&mut comms, usize::MAX).unwrap();
            }
            assert_eq!(&into, b"abc");
        }
    }
}
