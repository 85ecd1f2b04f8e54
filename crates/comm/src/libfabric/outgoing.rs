//! Messages to other ranks.

use super::message_header::{HeaderKind, Message};
use super::requests::{Chunk, RequestPool, UserMemory};
use crate::matching::Envelope;
use crate::network::UserSend;
use crate::transport::RequestId;
use regatta_fabric::FiResult;

/// Chunks of a message in flight at once.
pub const MAX_CHUNKS_IN_FLIGHT: usize = 8;

/// Messages to a peer that may be unconsumed. Further sends wait for credits.
pub const SEND_WINDOW: u64 = 1024;

/// The send state of a peer.
#[derive(Debug, Default)]
pub struct SendWindow {
    sequence: u64,
    chunks: u64,
    pub unconsumed: u64,
}

/// A message being sent.
pub struct OutgoingMessage {
    pub to: u32,
    envelope: Envelope,
    pub request: RequestId,
    /// The user memory; `None` if it was reclaimed, in which case arbitrary bytes are sent.
    pub user: Option<UserMemory>,
    /// Whether the header was sent.
    pub header_sent: bool,
    first_chunk: u64,
    at: usize,
    pub in_flight: usize,
}

impl OutgoingMessage {
    pub fn new(to: u32, UserSend { envelope, request, start }: UserSend) -> Self {
        let comm_id = envelope.key.comm_id;
        let user = Some(UserMemory { start: start.cast_mut(), comm_id });
        let (header_sent, first_chunk, at, in_flight) = (false, 0, 0, 0);
        Self { to, envelope, request, user, header_sent, first_chunk, at, in_flight }
    }

    pub fn comm_id(&self) -> u64 {
        self.envelope.key.comm_id
    }

    pub fn length(&self) -> usize {
        self.envelope.length as usize
    }

    /// Posts the header and as many chunks as possible.
    pub fn post(&mut self, id: u64, window: &mut SendWindow, pool: &mut RequestPool) -> FiResult {
        if !self.header_sent {
            self.send_header(window, pool)?;
        }
        while self.header_sent && self.at < self.length() && self.in_flight < MAX_CHUNKS_IN_FLIGHT {
            let (at, peer) = (self.at, self.to);
            let size = pool.chunk_bytes.min(self.length() - at);
            let number = self.first_chunk + (at / pool.chunk_bytes) as u64;
            // SAFETY: the offset lies within the message.
            let from = |user: UserMemory| unsafe { user.start.add(at) };
            let from = self.user.map(|user| UserMemory { start: from(user), ..user });
            if !pool.send_chunk(Chunk { message: id, peer, number, at, size }, from)? {
                break;
            }
            self.at += size;
            self.in_flight += 1;
        }
        Ok(())
    }

    fn send_header(&mut self, window: &mut SendWindow, pool: &mut RequestPool) -> FiResult {
        if window.unconsumed >= SEND_WINDOW {
            return Ok(());
        }
        let (length, mut eager): (_, &[u8]) = (self.length(), &[]);
        let is_eager = length <= pool.eager_limit();
        if let Some(user) = self.user.filter(|_| is_eager && length > 0) {
            // SAFETY: user memory is valid until the message completes.
            eager = unsafe { std::slice::from_raw_parts(user.start, length) };
        }
        let chunk_bytes = if is_eager { 0 } else { pool.chunk_bytes as u32 };
        let (sequence, first_chunk) = (window.sequence, window.chunks);
        let message = Message { sequence, envelope: self.envelope, first_chunk, chunk_bytes };
        if pool.send_header(self.to, HeaderKind::Message(message), eager)? {
            self.header_sent = true;
            window.sequence += 1;
            window.unconsumed += 1;
            if is_eager {
                self.at = length;
            } else {
                self.first_chunk = first_chunk;
                window.chunks += length.div_ceil(pool.chunk_bytes) as u64;
            }
        }
        Ok(())
    }

    /// Whether the user memory is no longer needed.
    pub fn is_done(&self) -> bool {
        self.header_sent && self.at == self.length() && self.in_flight == 0
    }
}
