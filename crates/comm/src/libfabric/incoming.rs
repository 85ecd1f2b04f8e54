//! Messages from other ranks: their order, and the reception of large ones.

use std::collections::BTreeMap;

use super::message_header::Message;
use super::outgoing::{MAX_CHUNKS_IN_FLIGHT, SEND_WINDOW};
use super::requests::{Chunk, RequestPool, UserMemory};
use crate::network::{UserRecv, alloc_unexpected};
use regatta_fabric::FiResult;

/// Restores the order of a peer's headers. Providers may reorder messages.
#[derive(Default)]
pub struct Resequencer {
    /// The next sequence number.
    next: u64,
    /// Headers that overtook others, with their eager payloads.
    reordered: BTreeMap<u64, (Message, Vec<u8>)>,
}

impl Resequencer {
    /// Whether this header is the next in sequence. If not, it is stored for [`Self::pop`].
    pub fn push(&mut self, message: &Message, eager: &[u8]) -> bool {
        if message.sequence == self.next {
            self.next += 1;
            return true;
        }
        let out_of_range = message.sequence.wrapping_sub(self.next) > 2 * SEND_WINDOW;
        if !out_of_range {
            self.reordered.insert(message.sequence, (*message, eager.to_vec()));
        }
        false
    }

    /// The next stored header, if it is in sequence.
    pub fn pop(&mut self) -> Option<(Message, Vec<u8>)> {
        let next = self.reordered.remove(&self.next)?;
        self.next += 1;
        Some(next)
    }
}

/// A large message being received.
pub struct IncomingMessage {
    pub from: u32,
    pub message: Message,
    /// The matching receive; `None` if it was not posted in time or was cancelled.
    pub recv: Option<UserRecv>,
    /// The payload of an unexpected message.
    pub buffered: Option<Vec<u8>>,
    at: usize,
    /// Chunks to be received again, because their memory was reclaimed.
    pub reposts: Vec<usize>,
    /// Chunks that are being received, copied or reduced.
    pub in_flight: usize,
}

impl IncomingMessage {
    pub fn new(from: u32, message: Message, recv: Option<UserRecv>) -> Self {
        Self { from, message, recv, buffered: None, at: 0, reposts: Vec::new(), in_flight: 0 }
    }

    /// An unexpected message to be fetched; `None` if there is no memory for it.
    pub fn unexpected(from: u32, message: Message) -> Option<Self> {
        let buffered = Some(alloc_unexpected(message.envelope.length as usize)?);
        Some(Self { buffered, ..Self::new(from, message, None) })
    }

    pub fn comm_id(&self) -> u64 {
        self.message.envelope.key.comm_id
    }

    fn length(&self) -> usize {
        self.message.envelope.length as usize
    }

    /// Posts as many chunk receives as possible.
    pub fn post(&mut self, id: u64, pool: &mut RequestPool) -> FiResult {
        let chunk = self.message.chunk_bytes as usize;
        if chunk == 0 || chunk > pool.chunk_bytes {
            let own = pool.chunk_bytes;
            return Err(format!("the peer's chunk size is {chunk} bytes, this rank's is {own}"));
        }
        while self.in_flight < MAX_CHUNKS_IN_FLIGHT {
            let at = self.reposts.last().copied().unwrap_or(self.at);
            if at >= self.length() {
                break;
            }
            let size = chunk.min(self.length() - at);
            let number = self.message.first_chunk + (at / chunk) as u64;
            let comm_id = self.comm_id();
            let direct = self.recv.as_mut().and_then(|recv| recv.buffer.direct(at, size));
            let into = direct.map(|bytes| UserMemory { start: bytes.as_mut_ptr(), comm_id });
            let chunk = Chunk { message: id, peer: self.from, number, at, size };
            if !pool.receive_chunk(chunk, into)? {
                break;
            }
            if self.reposts.pop().is_none() {
                self.at += size;
            }
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Whether all chunks have arrived.
    pub fn is_done(&self) -> bool {
        self.at >= self.length() && self.reposts.is_empty() && self.in_flight == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::{Envelope, MessageKey};

    fn message(sequence: u64) -> Message {
        let key = MessageKey { comm_id: 1, tagged: true, number: sequence % 2 };
        let envelope = Envelope { key, length: 0, signature_hash: 0 };
        Message { sequence, envelope, first_chunk: 0, chunk_bytes: 0 }
    }

    #[test]
    fn reordered_headers_are_delivered_in_sequence() {
        let mut order = Resequencer::default();
        let mut delivered = Vec::new();
        for sequence in [1, 0, 3, 4, 2, 2, 1 << 40] {
            delivered.extend(order.push(&message(sequence), &[]).then_some(sequence));
            while let Some((message, _)) = order.pop() {
                delivered.push(message.sequence);
            }
        }
        assert_eq!(delivered, [0, 1, 2, 3, 4]);
    }
}
