//! A large message that is being received.

use crate::matching::Envelope;
use crate::net_plugin::chunks::Chunks;
use crate::net_plugin::connection::{Connection, Request, RequestMemory};
use crate::net_plugin::peer::LinkResult;
use crate::net_plugin::table::NetError;
use crate::network::UserRecv;

/// Where the chunks of a large message go.
pub enum Destination {
    User(UserRecv),
    /// An unexpected message, by its number in the match queue.
    Unexpected(u64, Vec<u8>),
    /// The receive was cancelled, or the sender has ended the message.
    Nowhere,
}

/// Bytes of the chunk by which a sender ends a message that it has cancelled, instead of `whole`.
pub fn ending_bytes(whole: usize) -> usize {
    whole.min(2) - 1
}

/// A large message that is cleared to send.
pub struct IncomingMessage {
    chunk_bytes: usize,
    pub destination: Destination,
    pub chunks: Chunks,
    /// Whether the message is unexpected, so that its credit is due when it has arrived.
    pub is_unexpected: bool,
}

impl IncomingMessage {
    pub fn new(envelope: Envelope, chunk_bytes: usize, destination: Destination) -> Self {
        let is_unexpected = matches!(destination, Destination::Unexpected(..));
        Self { chunk_bytes, destination, chunks: Chunks::new(envelope), is_unexpected }
    }

    /// Posts the receive of the next chunk: into user memory if it is only copied, else into a bounce
    /// buffer. Returns false if the plug-in cannot take it now.
    pub fn post_chunk(&mut self, id: u64, connection: &mut Connection) -> LinkResult<bool> {
        let (at, chunks) = (self.chunks.at, &mut self.chunks);
        let length = chunks.length();
        let size = self.chunk_bytes.min(length - at);
        let direct = match &mut self.destination {
            Destination::User(recv) => recv.buffer.direct(0, length),
            _ => None,
        };
        let memory = match direct.filter(|all| all.len() == length) {
            Some(all) => chunks.user_memory(all, connection)?,
            None => RequestMemory::Bounce(connection.bounce_buffer()?),
        };
        let request = Request { memory, message: id, at, size };
        // SAFETY: user memory is valid until the message completes or is cancelled, which waits for it.
        Ok(unsafe { chunks.post(request, size, connection) }?)
    }

    /// A chunk has arrived, with this many bytes.
    pub fn received(&mut self, chunk: &Request, size: usize) -> LinkResult {
        let Request { memory, at, size: expected, .. } = chunk;
        self.chunks.completed(chunk);
        if size == ending_bytes(*expected) {
            self.destination = Destination::Nowhere;
        } else if size != *expected {
            return Err(format!("the net plug-in reported {size} bytes of a chunk of {expected}"));
        }
        let RequestMemory::Bounce(bounce) = memory else { return Ok(()) };
        let bytes = &bounce.buffer.bytes()[..size.min(bounce.buffer.bytes().len())];
        match &mut self.destination {
            Destination::User(recv) => recv.buffer.write(*at, bytes),
            Destination::Unexpected(_, into) => into[*at..*at + size].copy_from_slice(bytes),
            Destination::Nowhere => {}
        }
        Ok(())
    }

    /// Ends the registration once the user memory is no longer written.
    pub fn release_memory(&mut self, connection: &mut Connection) -> Result<(), NetError> {
        let is_cancelled = matches!(self.destination, Destination::Nowhere);
        self.chunks.release_memory(is_cancelled, connection)
    }
}
