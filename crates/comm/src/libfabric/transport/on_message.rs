//! Matching and delivery of incoming messages.

use super::FabricTransport;
use crate::libfabric::match_queue::{IncomingMessage, UnexpectedMessage};
use crate::libfabric::message_header::{HeaderKind, MESSAGE_HEADER_BYTES, Message, MessageHeader};
use crate::libfabric::outgoing::SEND_WINDOW;
use crate::tcp::{CommTable, LinkDirection, PostedRecv, check_match};

impl FabricTransport {
    /// Handles a header. Malformed headers and those of other jobs are dropped.
    pub(super) fn handle_header(&mut self, bytes: &[u8], comms: &mut CommTable) {
        let Some(header) = MessageHeader::decode(bytes) else { return };
        let from = header.from;
        if header.job != self.job || from >= self.ranks {
            return;
        }
        let peer = self.peers.entry(from).or_default();
        match header.kind {
            HeaderKind::Credit(count) => peer.window.credit(count),
            HeaderKind::Message(message) => {
                let eager = &bytes[MESSAGE_HEADER_BYTES..];
                match peer.queue.is_next(&message) {
                    true => self.match_message(from, message, eager, comms),
                    false => peer.queue.reorder(message, eager),
                }
                while let Some((message, eager)) =
                    self.peers.get_mut(&from).and_then(|peer| peer.queue.next_in_order())
                {
                    self.match_message(from, message, &eager, comms);
                }
            }
        }
    }

    /// Matches a message with a posted receive or queues it as unexpected.
    fn match_message(&mut self, from: u32, message: Message, eager: &[u8], comms: &mut CommTable) {
        let queue = &mut self.peers.entry(from).or_default().queue;
        match queue.take_posted(message.header.key) {
            Some(posted) => {
                let posted = check_match(&message.header, &posted, comms).then_some(posted);
                self.deliver(from, message, eager, posted, comms);
            }
            None if comms.accept_unexpected(&message.header) => {
                queue.push_unexpected(message, eager.to_vec());
            }
            None => self.deliver(from, message, eager, None, comms),
        }
    }

    /// Delivers a message to its receive, or discards it if there is none.
    fn deliver(
        &mut self,
        from: u32,
        message: Message,
        eager: &[u8],
        posted: Option<PostedRecv>,
        comms: &mut CommTable,
    ) {
        self.peers.entry(from).or_default().queue.credits += 1;
        if message.chunk_bytes > 0 {
            self.next += 1;
            let (id, mut message) = (self.next, IncomingMessage::new(from, message, posted));
            if self.failure.is_some() {
                return;
            }
            match message.post(id, &mut self.pool) {
                Ok(()) => drop(self.recvs.insert(id, message)),
                Err(why) => self.broken.push((from, LinkDirection::Recv, why)),
            }
            return;
        }
        let Some(posted) = posted else { return };
        match eager.get(..posted.length) {
            Some(bytes) => {
                posted.recv_buffer().write(0, bytes);
                comms.add_bytes_moved(posted.key.comm_id, bytes.len());
                comms.complete(posted.key.comm_id, posted.request);
            }
            None => {
                let why = "received a truncated message".to_owned();
                self.broken.push((from, LinkDirection::Recv, why));
            }
        }
    }

    /// Delivers an unexpected message.
    pub(super) fn deliver_unexpected(
        &mut self,
        from: u32,
        unexpected: UnexpectedMessage,
        posted: Option<PostedRecv>,
        comms: &mut CommTable,
    ) {
        let Some(id) = unexpected.fetched else {
            return self.deliver(from, unexpected.message, &unexpected.eager, posted, comms);
        };
        self.peers.entry(from).or_default().queue.credits += 1;
        if let Some(message) = self.recvs.get_mut(&id) {
            match posted {
                Some(_) => message.posted = posted,
                None => message.discard(),
            }
        }
        self.finish_recv(id, comms);
    }

    /// Fetches large unexpected messages. The sender may be blocked in one of them while this rank
    /// waits for a later one.
    pub(super) fn fetch_unexpected(&mut self) {
        for (rank, peer) in &mut self.peers {
            while let Some(unexpected) = peer.queue.unfetched() {
                // Without memory for it, the message stays at the sender.
                let message = IncomingMessage::unexpected(*rank, unexpected.message);
                let Some(message) = message else { break };
                self.next += 1;
                unexpected.fetched = Some(self.next);
                self.recvs.insert(self.next, message);
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

    pub(super) fn chunk_received(
        &mut self,
        id: u64,
        at: usize,
        size: usize,
        bytes: Option<&[u8]>,
        comms: &mut CommTable,
    ) {
        let Some(message) = self.recvs.get_mut(&id) else { return };
        message.in_flight -= 1;
        if let Some(bytes) = bytes {
            message.write(at, bytes);
        }
        comms.add_bytes_moved(message.message.header.key.comm_id, size);
        self.finish_recv(id, comms);
    }

    fn finish_recv(&mut self, id: u64, comms: &mut CommTable) {
        if self.recvs.get(&id).is_some_and(IncomingMessage::is_done)
            && let Some(posted) = self.recvs.remove(&id).and_then(IncomingMessage::finish)
        {
            comms.complete(posted.key.comm_id, posted.request);
        }
    }

    pub(super) fn fail_recv(&mut self, id: u64, why: String) {
        if let Some(message) = self.recvs.remove(&id) {
            self.broken.push((message.from, LinkDirection::Recv, why));
        }
    }

    /// Grants credits to peers.
    pub(super) fn send_credits(&mut self) {
        for (rank, peer) in &mut self.peers {
            let credits = peer.queue.credits;
            if credits < SEND_WINDOW / 4 {
                continue;
            }
            match self.pool.send_header(*rank, HeaderKind::Credit(credits), &[]) {
                Ok(true) => peer.queue.credits = 0,
                Ok(false) => {}
                Err(why) => self.broken.push((*rank, LinkDirection::Send, why)),
            }
        }
    }
}
