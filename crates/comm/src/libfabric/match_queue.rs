//! Matching and receiving messages from a peer.

use std::collections::{BTreeMap, VecDeque};

use super::FiResult;
use super::message_header::Message;
use super::outgoing::{MAX_CHUNKS_IN_FLIGHT, SEND_WINDOW};
use super::requests::{Op, RequestPool, UserMemory};
use crate::tcp::{MessageKey, PostedRecv};
use crate::transport::RecvAction;

/// The posted receives and unexpected messages of a peer.
#[derive(Default)]
pub struct MatchQueue {
    /// The next sequence number.
    next: u64,
    /// Headers that overtook others. Providers may reorder messages.
    reordered: BTreeMap<u64, (Message, Vec<u8>)>,
    /// The unexpected-message queue, in sending order.
    unexpected: VecDeque<UnexpectedMessage>,
    /// Posted receives without a message.
    pub posted: VecDeque<PostedRecv>,
    /// Consumed messages for which the peer has not received credits.
    pub credits: u64,
}

/// A message without a posted receive.
#[derive(Debug, PartialEq, Eq)]
pub struct UnexpectedMessage {
    pub message: Message,
    /// The payload of an eager message.
    pub eager: Vec<u8>,
    /// The ID of a large message that is being fetched.
    pub fetched: Option<u64>,
}

impl MatchQueue {
    /// Whether this header is the next in sequence. If so, advances the sequence.
    pub fn is_next(&mut self, message: &Message) -> bool {
        let next = message.sequence == self.next;
        self.next += u64::from(next);
        next
    }

    /// Stores a header that arrived early. [`Self::next_in_order`] returns it in order.
    pub fn reorder(&mut self, message: Message, eager: &[u8]) {
        let out_of_range = message.sequence.wrapping_sub(self.next) > 2 * SEND_WINDOW;
        if !out_of_range {
            self.reordered.insert(message.sequence, (message, eager.to_vec()));
        }
    }

    /// The next stored header, if it is in sequence.
    pub fn next_in_order(&mut self) -> Option<(Message, Vec<u8>)> {
        let next = self.reordered.remove(&self.next)?;
        self.next += 1;
        Some(next)
    }

    /// Takes the first matching posted receive.
    pub fn take_posted(&mut self, key: MessageKey) -> Option<PostedRecv> {
        let at = self.posted.iter().position(|posted| posted.key == key)?;
        self.posted.remove(at)
    }

    /// Appends to the unexpected-message queue.
    pub fn push_unexpected(&mut self, message: Message, eager: Vec<u8>) {
        self.unexpected.push_back(UnexpectedMessage { message, eager, fetched: None });
    }

    /// Takes the first unexpected message with a matching key.
    pub fn take_unexpected(
        &mut self,
        matches: impl Fn(MessageKey) -> bool,
    ) -> Option<UnexpectedMessage> {
        let at = self.unexpected.iter().position(|one| matches(one.message.header.key))?;
        self.unexpected.remove(at)
    }

    /// A large unexpected message that is not being fetched yet.
    pub fn unfetched(&mut self) -> Option<&mut UnexpectedMessage> {
        let unfetched =
            |one: &&mut UnexpectedMessage| one.message.chunk_bytes > 0 && one.fetched.is_none();
        self.unexpected.iter_mut().find(unfetched)
    }
}

/// A large message being received.
pub struct IncomingMessage {
    pub from: u32,
    pub message: Message,
    /// The matching receive; `None` if it is not posted yet or was cancelled.
    pub posted: Option<PostedRecv>,
    /// The payload of an unexpected message.
    buffered: Option<Vec<u8>>,
    at: usize,
    /// Chunks to be received again, because their memory was reclaimed.
    pub reposts: Vec<usize>,
    pub in_flight: usize,
}

impl IncomingMessage {
    pub fn new(from: u32, message: Message, posted: Option<PostedRecv>) -> Self {
        Self { from, message, posted, buffered: None, at: 0, reposts: Vec::new(), in_flight: 0 }
    }

    /// An unexpected message to be fetched; `None` if there is no memory for it.
    pub fn unexpected(from: u32, message: Message) -> Option<Self> {
        let mut buffered = Vec::new();
        buffered.try_reserve_exact(message.header.length as usize).ok()?;
        buffered.resize(message.header.length as usize, 0);
        Some(Self { buffered: Some(buffered), ..Self::new(from, message, None) })
    }

    /// Discards the message. Chunks that still arrive are dropped.
    pub fn discard(&mut self) {
        (self.posted, self.buffered) = (None, None);
    }

    /// Stores a chunk that arrived in a bounce buffer.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        match (&mut self.buffered, &self.posted) {
            (Some(buffered), _) => buffered[at..at + bytes.len()].copy_from_slice(bytes),
            (None, Some(posted)) => posted.recv_buffer().write(at, bytes),
            (None, None) => {}
        }
    }

    /// Copies a buffered payload to the posted receive and returns the receive.
    pub fn finish(self) -> Option<PostedRecv> {
        if let (Some(buffered), Some(posted)) = (&self.buffered, &self.posted) {
            posted.recv_buffer().write(0, buffered);
        }
        self.posted
    }

    fn length(&self) -> usize {
        self.message.header.length as usize
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
            let buffered = self.buffered.is_some();
            let direct = |posted: &&PostedRecv| posted.action == RecvAction::Copy && !buffered;
            let into = self.posted.as_ref().filter(direct).map(|posted| UserMemory {
                // SAFETY: the message is as long as the posted receive.
                start: unsafe { posted.start.add(at) },
                comm_id: posted.key.comm_id,
            });
            let op = Op::RecvChunk(id, at, size);
            if !pool.receive_chunk(op, self.from, number, into, size)? {
                break;
            }
            if self.reposts.pop().is_none() {
                self.at += size;
            }
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Whether all chunks have arrived and the message is matched or discarded.
    pub fn is_done(&self) -> bool {
        let arrived = self.at >= self.length() && self.reposts.is_empty() && self.in_flight == 0;
        arrived && (self.buffered.is_none() || self.posted.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Header;

    fn message(sequence: u64) -> Message {
        let key = MessageKey { comm_id: 1, tagged: true, number: sequence % 2 };
        let header = Header { key, length: 0, signature_hash: 0, stripes: 1 };
        Message { sequence, header, first_chunk: 0, chunk_bytes: 0 }
    }

    #[test]
    fn reordered_headers_are_delivered_in_sequence() {
        let mut queue = MatchQueue::default();
        let mut delivered = Vec::new();
        for sequence in [1, 0, 3, 4, 2, 2, 1 << 40] {
            match queue.is_next(&message(sequence)) {
                true => delivered.push(sequence),
                false => queue.reorder(message(sequence), &[]),
            }
            while let Some((message, _)) = queue.next_in_order() {
                delivered.push(message.sequence);
            }
        }
        assert_eq!(delivered, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn unexpected_messages_match_in_sending_order() {
        let mut queue = MatchQueue::default();
        (0..4).for_each(|sequence| queue.push_unexpected(message(sequence), vec![sequence as u8]));
        let mut take = |tag| queue.take_unexpected(|key| key.number == tag).map(|one| one.eager);
        assert_eq!([take(1), take(0), take(1)], [Some(vec![1]), Some(vec![0]), Some(vec![3])]);
        assert_eq!(take(1), None);
    }
}
