//! The connections to one rank and their send queues.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{self, SendAncillaryBuffer, SendFlags, sendmsg};

use crate::network::{Report, UserSend};
use crate::tcp::frame::{HEADER_BYTES, Header, stripe};
use crate::transport::RequestId;

/// Up to this size, a copy costs less than the second slice of a system call.
const SMALL_BYTES: usize = 256;

/// Connections to a rank. Messages are sent in the order they were posted.
#[derive(Default)]
pub struct Outgoing {
    conns: Vec<Connection>,
    /// Stripes still to be written, by message.
    stripes_left: HashMap<RequestId, usize>,
}

struct Connection {
    stream: Arc<TcpStream>,
    queue: VecDeque<Chunk>,
}

/// A header and the payload after it on one connection. Stripes after the first have no header.
struct Chunk {
    comm_id: u64,
    request: RequestId,
    header: [u8; HEADER_BYTES],
    header_at: usize,
    /// Whether any byte was written.
    started: bool,
    payload: Payload,
    at: usize,
}

enum Payload {
    User(*const u8, usize),
    /// A copy made when the user's memory was released in the middle of a message.
    Owned(Vec<u8>),
}

// SAFETY: user memory is only read, under the lock of the connections; the caller of `post_send`
// guarantees that it is valid.
unsafe impl Send for Payload {}

impl Chunk {
    fn unsent(&self) -> &[u8] {
        match &self.payload {
            // SAFETY: user memory is valid until the chunk completes or `cancel` replaces it by a
            // copy; `at` never exceeds the length.
            Payload::User(start, length) => unsafe {
                std::slice::from_raw_parts(start.add(self.at), length - self.at)
            },
            Payload::Owned(bytes) => &bytes[self.at..],
        }
    }

    fn is_done(&self) -> bool {
        self.header_at == HEADER_BYTES && self.unsent().is_empty()
    }

    /// Records `count` written bytes.
    fn advance(&mut self, count: usize) {
        let of_header = count.min(HEADER_BYTES - self.header_at);
        self.header_at += of_header;
        self.at += count - of_header;
        self.started |= count > 0;
    }
}

impl Outgoing {
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    pub fn add(&mut self, stream: Arc<TcpStream>) {
        self.conns.push(Connection { stream, queue: VecDeque::new() });
    }

    /// Queues a message, to be written by [`Self::write`].
    pub fn push(&mut self, UserSend { envelope, request, start }: UserSend, stripes: u8) {
        let (comm_id, length) = (envelope.key.comm_id, envelope.length as usize);
        let header = Header { envelope, stripes }.encode();
        let stripes = usize::from(stripes);
        if stripes > 1 {
            self.stripes_left.insert(request, stripes);
        }
        for (i, conn) in self.conns.iter_mut().take(stripes).enumerate() {
            let range = stripe(length, i, stripes);
            // SAFETY: a stripe is within the message.
            let payload = Payload::User(unsafe { start.add(range.start) }, range.len());
            let header_at = if i == 0 { 0 } else { HEADER_BYTES };
            let (started, at) = (false, 0);
            let chunk = Chunk { comm_id, request, header, header_at, started, payload, at };
            conn.queue.push_back(chunk);
        }
    }

    /// Writes as much as the sockets accept. Returns whether anything was written.
    pub fn write(&mut self, report: &mut Report) -> Result<bool, Errno> {
        let mut wrote = false;
        for conn in &mut self.conns {
            while let Some(chunk) = conn.queue.front_mut() {
                if !chunk.is_done() {
                    match send(&conn.stream, chunk) {
                        Ok(count) => {
                            wrote = true;
                            chunk.advance(count);
                            report.add_moved(chunk.comm_id, count);
                        }
                        Err(Errno::AGAIN) => break,
                        Err(Errno::INTR) => continue,
                        Err(error) => return Err(error),
                    }
                }
                if chunk.is_done() {
                    let (comm_id, request) = (chunk.comm_id, chunk.request);
                    conn.queue.pop_front();
                    match self.stripes_left.get_mut(&request) {
                        Some(left) if *left > 1 => *left -= 1,
                        _ => {
                            self.stripes_left.remove(&request);
                            report.completed.push((comm_id, request));
                        }
                    }
                }
            }
        }
        Ok(wrote)
    }

    /// Whether messages wait to be written.
    pub fn has_queued(&self) -> bool {
        self.conns.iter().any(|conn| !conn.queue.is_empty())
    }

    /// The connections to poll for writability.
    pub fn blocked(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.conns.iter().filter(|conn| !conn.queue.is_empty()).map(|conn| &conn.stream)
    }

    /// Releases the memory of a communicator. Messages in progress are copied, because the peer
    /// expects the rest of them.
    pub fn cancel(&mut self, comm_id: u64) {
        let chunks = self.conns.iter().flat_map(|conn| &conn.queue);
        let started = chunks.filter(|c| c.comm_id == comm_id && c.started).map(|c| c.request);
        let started: Vec<_> = started.chain(self.stripes_left.keys().copied()).collect();
        for conn in &mut self.conns {
            let in_progress = |chunk: &Chunk| chunk.started || started.contains(&chunk.request);
            conn.queue.retain(|chunk| chunk.comm_id != comm_id || in_progress(chunk));
            for chunk in conn.queue.iter_mut().filter(|c| c.comm_id == comm_id) {
                let unsent = chunk.unsent().to_vec();
                chunk.payload = Payload::Owned(unsent);
                chunk.at = 0;
            }
        }
    }
}

fn send(stream: &TcpStream, chunk: &Chunk) -> Result<usize, Errno> {
    let (header, payload) = (&chunk.header[chunk.header_at..], chunk.unsent());
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut small = [0; SMALL_BYTES];
    let length = header.len() + payload.len();
    if let Some(bytes) = small.get_mut(..length) {
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..].copy_from_slice(payload);
        return net::send(stream, bytes, flags);
    }
    let slices = [IoSlice::new(header), IoSlice::new(payload)];
    sendmsg(stream, &slices, &mut SendAncillaryBuffer::default(), flags)
}
