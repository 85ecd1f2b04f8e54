//! Matching and delivery of incoming messages. Copies and reductions of received bytes run without the
//! lock of the endpoint.

use std::collections::btree_map::Entry;
use std::ops::Range;

use super::{Fabric, Payload};
use crate::libfabric::incoming::IncomingMessage;
use crate::libfabric::message_header::{HeaderKind, MESSAGE_HEADER_BYTES, Message, MessageHeader};
use crate::libfabric::outgoing::SEND_WINDOW;
use crate::libfabric::requests::{BounceBuffer, Chunk, RequestMemory};
use crate::matching::MatchResult;
use crate::network::{LinkDirection, UserBuffer, UserRecv};

/// Received bytes.
pub enum Source {
    Bounce(BounceBuffer, Range<usize>),
    Bytes(Vec<u8>),
}

impl Source {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bounce(bounce, range) => {
                bounce.buffer.bytes().get(range.clone()).unwrap_or_default()
            }
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Received bytes and the receive they belong to.
pub struct Delivery {
    pub recv: UserRecv,
    /// The offset within the message.
    pub at: usize,
    pub source: Source,
    /// The message of which this is a chunk, or `None` if it is the whole message.
    pub message: Option<u64>,
}

impl Fabric {
    /// Handles a header. Malformed headers and those of other jobs are dropped.
    pub(super) fn handle_header(&mut self, memory: RequestMemory, length: usize) {
        let RequestMemory::Bounce(bounce) = memory else { return };
        let length = length.min(bounce.buffer.bytes().len());
        let header = MessageHeader::decode(&bounce.buffer.bytes()[..length]);
        let ranks = self.addresses.len();
        let header = header.filter(|h| h.job == self.pool.job && (h.from as usize) < ranks);
        let eager = Source::Bounce(bounce, MESSAGE_HEADER_BYTES..length);
        let Some(MessageHeader { from, kind, .. }) = header else { return self.release(eager) };
        let peer = self.peers.entry(from).or_default();
        match kind {
            HeaderKind::Credit(count) => {
                peer.window.unconsumed = peer.window.unconsumed.saturating_sub(count);
                self.release(eager);
            }
            HeaderKind::Message(message) => {
                match peer.order.push(&message, eager.bytes()) {
                    true => self.match_message(from, message, eager),
                    false => self.release(eager),
                }
                let next = |fabric: &mut Self| fabric.peers.get_mut(&from)?.order.pop();
                while let Some((message, eager)) = next(self) {
                    self.match_message(from, message, Source::Bytes(eager));
                }
            }
        }
    }

    /// Matches a message with a posted receive or queues it as unexpected.
    fn match_message(&mut self, from: u32, message: Message, eager: Source) {
        let (envelope, is_eager) = (message.envelope, message.chunk_bytes == 0);
        let shared = self.shared.clone();
        let status = || shared.comm_status(envelope.key.comm_id);
        self.next += 1;
        let id = self.next;
        let queue = &mut self.peers.entry(from).or_default().queue;
        let payload = (!is_eager).then_some(Payload::Remote(message));
        match queue.arrive(id, envelope, payload, status) {
            MatchResult::Deliver(recv, None) if is_eager => {
                return self.deliver(from, recv, eager);
            }
            MatchResult::Queued if is_eager => {
                queue.supply(id, Payload::Bytes(eager.bytes().to_vec()));
            }
            MatchResult::Discard(None, error) => {
                self.add_credit(from);
                self.report.add_error(envelope.key.comm_id, error);
            }
            result => self.consume(from, envelope.key.comm_id, result),
        }
        self.release(eager);
    }

    /// Posts a receive.
    pub fn receive(&mut self, from: u32, recv: UserRecv) {
        let comm_id = recv.envelope.key.comm_id;
        let result = self.peers.entry(from).or_default().queue.post(recv);
        self.consume(from, comm_id, result);
    }

    /// Delivers or discards a message whose payload is known.
    fn consume(&mut self, from: u32, comm_id: u64, result: MatchResult<UserBuffer, Payload>) {
        let (recv, payload) = match result {
            MatchResult::Deliver(recv, payload) => (Some(recv), payload),
            MatchResult::Discard(payload, error) => {
                self.report.add_error(comm_id, error);
                (None, payload)
            }
            MatchResult::Queued => return,
        };
        match (recv, payload) {
            (Some(recv), Some(Payload::Bytes(bytes))) => {
                self.deliver(from, recv, Source::Bytes(bytes));
            }
            (recv, Some(Payload::Remote(message))) => self.start_recv(from, message, recv),
            (None, Some(Payload::Bytes(_))) => self.add_credit(from),
            // An unexpected message that is being fetched.
            (_, None) => {}
        }
    }

    /// Delivers a whole message.
    fn deliver(&mut self, from: u32, recv: UserRecv, source: Source) {
        self.add_credit(from);
        if source.bytes().len() == recv.envelope.length as usize {
            self.report.add_moved(recv.envelope.key.comm_id, source.bytes().len());
            self.deliveries.push(Delivery { recv, at: 0, source, message: None });
        } else {
            let why = "received a truncated message".to_owned();
            self.report.broken.push((from, LinkDirection::Recv, why));
            self.release(source);
        }
    }

    /// Receives a large message from its sender, or discards it if there is no receive.
    fn start_recv(&mut self, from: u32, message: Message, recv: Option<UserRecv>) {
        self.add_credit(from);
        self.next += 1;
        let mut message = IncomingMessage::new(from, message, recv);
        if self.failure.is_some() {
            return;
        }
        match message.post(self.next, &mut self.pool) {
            Ok(()) => drop(self.recvs.insert(self.next, message)),
            Err(why) => self.report.broken.push((from, LinkDirection::Recv, why)),
        }
    }

    fn add_credit(&mut self, from: u32) {
        self.peers.entry(from).or_default().credits += 1;
    }

    /// Returns received bytes to the pool.
    fn release(&mut self, source: Source) {
        if let Source::Bounce(bounce, _) = source {
            self.pool.release(RequestMemory::Bounce(bounce));
        }
    }

    /// Discards the unexpected messages of a communicator.
    pub fn close(&mut self, comm_id: u64) {
        let ranks: Vec<u32> = self.peers.keys().copied().collect();
        for rank in ranks {
            for payload in self.peers.entry(rank).or_default().queue.close(comm_id) {
                self.consume(rank, comm_id, MatchResult::Discard(Some(payload), None));
            }
        }
    }

    /// Fetches large unexpected messages. The sender may be blocked in one of them while this rank
    /// waits for a later one.
    pub(super) fn fetch_unexpected(&mut self) {
        // Without memory for it, a message stays at its sender.
        for (rank, peer) in &mut self.peers {
            let fetch = |payload: &Payload| match payload {
                Payload::Remote(message) => IncomingMessage::unexpected(*rank, *message),
                Payload::Bytes(_) => None,
            };
            while let Some((id, message)) = peer.queue.take_payload(fetch) {
                self.recvs.insert(id, message);
            }
        }
    }

    pub(super) fn post_recvs(&mut self) {
        let mut failed = Vec::new();
        for (id, message) in &mut self.recvs {
            if let Err(why) = message.post(*id, &mut self.pool) {
                failed.push((*id, why));
            }
        }
        failed.into_iter().for_each(|(id, why)| self.fail_recv(id, why));
    }

    /// Handles a chunk, in a bounce buffer or directly in user memory.
    pub(super) fn chunk_received(&mut self, chunk: Chunk, memory: RequestMemory) {
        let Chunk { message: id, at, size, .. } = chunk;
        let Some(message) = self.recvs.get_mut(&id) else { return self.pool.release(memory) };
        self.report.add_moved(message.comm_id(), size);
        if let RequestMemory::Bounce(bounce) = memory {
            let source = Source::Bounce(bounce, 0..size);
            if let Some(recv) = message.recv {
                let delivery = Delivery { recv, at, source, message: Some(id) };
                return self.deliveries.push(delivery);
            }
            // Into memory of this endpoint, so under its lock.
            if let Some(buffered) = &mut message.buffered {
                buffered[at..at + size].copy_from_slice(source.bytes());
            }
            self.release(source);
        }
        self.chunk_finished(id);
    }

    /// A chunk has been received, copied or reduced. Completes its message after the last one.
    fn chunk_finished(&mut self, id: u64) {
        let Entry::Occupied(mut message) = self.recvs.entry(id) else { return };
        message.get_mut().in_flight -= 1;
        if !message.get().is_done() {
            return;
        }
        let message = message.remove();
        let (from, comm_id) = (message.from, message.comm_id());
        if let Some(bytes) = message.buffered {
            let queue = &mut self.peers.entry(from).or_default().queue;
            let result = queue.supply(id, Payload::Bytes(bytes));
            self.consume(from, comm_id, result);
        } else if let Some(recv) = message.recv {
            self.report.completed.push((comm_id, recv.request));
        }
    }

    pub(super) fn fail_recv(&mut self, id: u64, why: String) {
        if let Some(message) = self.recvs.remove(&id) {
            self.report.broken.push((message.from, LinkDirection::Recv, why));
        }
    }

    /// Takes the deliveries to be run without the lock.
    pub fn start_deliveries(&mut self) -> Vec<Delivery> {
        let deliveries = std::mem::take(&mut self.deliveries);
        self.delivering.extend(deliveries.iter().map(|d| d.recv.envelope.key.comm_id));
        deliveries
    }

    /// Completes a delivery that was run.
    pub fn finish_delivery(&mut self, Delivery { recv, source, message, .. }: Delivery) {
        let comm_id = recv.envelope.key.comm_id;
        if let Some(at) = self.delivering.iter().position(|delivering| *delivering == comm_id) {
            self.delivering.swap_remove(at);
        }
        self.release(source);
        match message {
            None => self.report.completed.push((comm_id, recv.request)),
            Some(id) => self.chunk_finished(id),
        }
    }

    /// Grants credits to peers.
    pub(super) fn send_credits(&mut self) {
        for (rank, peer) in &mut self.peers {
            if peer.credits < SEND_WINDOW / 4 {
                continue;
            }
            match self.pool.send_header(*rank, HeaderKind::Credit(peer.credits), &[]) {
                Ok(true) => peer.credits = 0,
                Ok(false) => {}
                Err(why) => self.report.broken.push((*rank, LinkDirection::Send, why)),
            }
        }
    }
}
