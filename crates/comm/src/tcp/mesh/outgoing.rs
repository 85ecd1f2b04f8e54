//! The connections to one rank, and what waits to be written to them.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::Channels;
use crate::tcp::frame::{HEAD, Head, stripe};
use crate::transport::Ticket;

/// Connections to a rank. Messages go out in the order in which they were posted.
#[derive(Default)]
pub struct Outgoing {
    lanes: Vec<Lane>,
    /// Of how many stripes the rest of a message consists.
    parts: HashMap<Ticket, usize>,
}

struct Lane {
    stream: Arc<TcpStream>,
    queue: VecDeque<Chunk>,
}

/// A head and what follows it on one connection; a stripe has no head.
struct Chunk {
    channel: u64,
    ticket: Ticket,
    head: [u8; HEAD],
    head_at: usize,
    /// Whether a byte of it was written.
    begun: bool,
    bytes: Bytes,
    at: usize,
}

enum Bytes {
    Lent(*const u8, usize),
    /// What was lent is taken back, but what was begun must be ended.
    Owned(Vec<u8>),
}

// SAFETY: lent memory is only read, and by whoever holds the lock of the mesh; that it is valid is
// promised where it was posted.
unsafe impl Send for Bytes {}

impl Chunk {
    fn rest(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: lent memory is valid until the chunk is done, or `cancel` made it an owned
            // one; `at` is never beyond its length.
            Bytes::Lent(start, length) => unsafe {
                std::slice::from_raw_parts(start.add(self.at), length - self.at)
            },
            Bytes::Owned(bytes) => &bytes[self.at..],
        }
    }

    fn is_done(&self) -> bool {
        self.head_at == HEAD && self.rest().is_empty()
    }

    /// So many bytes were written.
    fn advance(&mut self, count: usize) {
        let of_head = count.min(HEAD - self.head_at);
        self.head_at += of_head;
        self.at += count - of_head;
        self.begun |= count > 0;
    }
}

impl Outgoing {
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub fn add(&mut self, stream: Arc<TcpStream>) {
        self.lanes.push(Lane { stream, queue: VecDeque::new() });
    }

    /// Queues a message, to be written by [`Self::write`].
    pub fn push(&mut self, head: Head, ticket: Ticket, start: *const u8, length: usize) {
        let stripes = usize::from(head.stripes);
        if stripes > 1 {
            self.parts.insert(ticket, stripes);
        }
        for (i, lane) in self.lanes.iter_mut().take(stripes).enumerate() {
            let range = stripe(length, i, stripes);
            // SAFETY: a stripe is within the message.
            let bytes = Bytes::Lent(unsafe { start.add(range.start) }, range.len());
            let head_at = if i == 0 { 0 } else { HEAD };
            let channel = head.key.channel;
            lane.queue.push_back(Chunk {
                channel,
                ticket,
                head: head.encode(),
                head_at,
                begun: false,
                bytes,
                at: 0,
            });
        }
    }

    /// Writes what goes. True: something went.
    pub fn write(&mut self, channels: &mut Channels) -> Result<bool, Errno> {
        let mut went = false;
        for lane in &mut self.lanes {
            while let Some(chunk) = lane.queue.front_mut() {
                if !chunk.is_done() {
                    match send(&lane.stream, chunk) {
                        Ok(count) => {
                            went = true;
                            chunk.advance(count);
                            channels.moved(chunk.channel, count);
                        }
                        Err(Errno::AGAIN) => break,
                        Err(Errno::INTR) => continue,
                        Err(error) => return Err(error),
                    }
                }
                if chunk.is_done() {
                    let (channel, ticket) = (chunk.channel, chunk.ticket);
                    lane.queue.pop_front();
                    if last_part(&mut self.parts, ticket) {
                        channels.done(channel, ticket);
                    }
                }
            }
        }
        Ok(went)
    }

    /// All connections.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.lanes.iter().map(|lane| &lane.stream)
    }

    /// The connections that should tell when they take more.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.lanes.iter().filter(|lane| !lane.queue.is_empty()).map(|lane| &lane.stream)
    }

    /// Gives memory of a channel back. What was begun, the other side counts on: it is copied.
    pub fn cancel(&mut self, channel: u64) {
        let begun: Vec<Ticket> = self
            .lanes
            .iter()
            .flat_map(|lane| lane.queue.iter())
            .filter(|chunk| chunk.channel == channel && chunk.begun)
            .map(|chunk| chunk.ticket)
            .chain(self.parts.keys().copied())
            .collect();
        for lane in &mut self.lanes {
            lane.queue.retain(|c| c.channel != channel || c.begun || begun.contains(&c.ticket));
            for chunk in lane.queue.iter_mut().filter(|c| c.channel == channel) {
                let rest = chunk.rest().to_vec();
                chunk.bytes = Bytes::Owned(rest);
                chunk.at = 0;
            }
        }
    }
}

/// Whether no other part of the message is on its way.
fn last_part(parts: &mut HashMap<Ticket, usize>, ticket: Ticket) -> bool {
    let Some(left) = parts.get_mut(&ticket) else { return true };
    *left -= 1;
    if *left > 0 {
        return false;
    }
    parts.remove(&ticket);
    true
}

fn send(stream: &TcpStream, chunk: &Chunk) -> Result<usize, Errno> {
    let slices = [IoSlice::new(&chunk.head[chunk.head_at..]), IoSlice::new(chunk.rest())];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(stream, &slices, &mut SendAncillaryBuffer::default(), flags)
}
