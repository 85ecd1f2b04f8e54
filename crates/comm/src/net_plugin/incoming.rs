//! Messages from a rank: their matching, and the reception of large ones.

mod message;

use std::collections::BTreeMap;

use super::connection::{Request, RequestMemory};
use super::control_message::{Announcement, ControlMessage, SLOT_BYTES};
use super::outgoing::Outgoing;
use super::peer::{
    CHUNK_ALIGNMENT, CHUNK_BYTES, LinkContext, LinkResult, MAX_CHUNKS, SEND_WINDOW, SLOTS,
};
use super::setup::{Listener, RecvLink};
use crate::matching::{MatchQueue, MatchResult};
use crate::network::{Report, UserBuffer, UserRecv, alloc_unexpected};
use message::{Destination, IncomingMessage};

pub use message::ending_bytes;

/// Control messages that are handled before control returns to the caller.
const MAX_POLLS: usize = 64;

/// The payload of an unexpected message.
enum Payload {
    Bytes(Vec<u8>),
    /// A large message that is still at the sender.
    Remote(Announcement),
}

/// What a step of the receive half uses: replies go to the send half.
pub struct RecvStep<'a> {
    pub context: &'a LinkContext,
    pub outgoing: &'a mut Outgoing,
    pub report: &'a mut Report,
}

/// The receive half of the links to a peer.
pub struct Incoming {
    control: RecvLink,
    data: RecvLink,
    queue: MatchQueue<UserBuffer, Payload>,
    /// In the order of their clearance, in which the peer sends them.
    receiving: BTreeMap<u64, IncomingMessage>,
    /// The number of the last message.
    last: u64,
    /// Consumed messages that the peer has not been told of.
    credits: u64,
    /// Whether a control message has arrived.
    pub has_received: bool,
    /// Why the control connection failed, until the large messages that are being received have arrived.
    failure: Option<String>,
}

impl Incoming {
    /// Messages of the rank that connects to this listener.
    pub fn new(listener: Listener) -> Self {
        Self {
            control: RecvLink::Pending(listener),
            data: RecvLink::Unused,
            queue: MatchQueue::default(),
            receiving: BTreeMap::new(),
            last: 0,
            credits: 0,
            has_received: false,
            failure: None,
        }
    }

    /// Makes progress without blocking. Returns whether a request has completed. Unless a receive is
    /// posted, a connection is only accepted with `accept`, because accepting costs system calls.
    pub fn progress(&mut self, step: &mut RecvStep<'_>, accept: bool) -> LinkResult<bool> {
        let control = self.progress_control(step, accept);
        let mut moved = control.unwrap_or_else(|why| {
            // A peer that exits closes its connections, and its last chunks may not have been read yet.
            self.control = RecvLink::Broken;
            self.failure = Some(why);
            true
        });
        moved |= self.poll_data(step)?;
        self.post_data()?;
        if let Some(why) = self.failure.take_if(|_| self.receiving.is_empty()) {
            return Err(why);
        }
        if self.credits >= SEND_WINDOW / 4 {
            step.outgoing.reply(ControlMessage::Credit(std::mem::take(&mut self.credits)), &[]);
        }
        Ok(moved)
    }

    fn progress_control(&mut self, step: &mut RecvStep<'_>, accept: bool) -> LinkResult<bool> {
        if accept || self.queue.has_posted() {
            self.control.ready(SLOT_BYTES)?;
        }
        let moved = self.poll_control(step)?;
        self.post_control()?;
        Ok(moved)
    }

    fn poll_control(&mut self, step: &mut RecvStep<'_>) -> LinkResult<bool> {
        let mut moved = false;
        for _ in 0..MAX_POLLS {
            let Some(connection) = self.control.get() else { break };
            let Some((request, size)) = connection.poll()? else { break };
            (moved, self.has_received) = (true, true);
            if let RequestMemory::Bounce(bounce) = &request.memory {
                let bytes = bounce.buffer.bytes().get(..size).unwrap_or_default();
                self.on_message(step, bytes)?;
            }
            if let Some(connection) = self.control.get() {
                connection.release(request.memory);
            }
        }
        Ok(moved)
    }

    /// Keeps receives posted.
    fn post_control(&mut self) -> LinkResult {
        let Some(connection) = self.control.get() else { return Ok(()) };
        while connection.in_flight() < SLOTS {
            let memory = RequestMemory::Bounce(connection.bounce_buffer()?);
            // SAFETY: the request owns its memory.
            if !unsafe { connection.post(Request { memory, message: 0, at: 0, size: SLOT_BYTES }) }?
            {
                break;
            }
        }
        Ok(())
    }

    fn on_message(&mut self, step: &mut RecvStep<'_>, bytes: &[u8]) -> LinkResult {
        let decoded = ControlMessage::decode(bytes, step.context.job);
        let (message, rest) =
            decoded.ok_or("received a malformed message, or one of another job")?;
        let (envelope, payload) = match message {
            ControlMessage::ClearToSend(id) => return step.outgoing.clear_to_send(id, rest),
            ControlMessage::Discard(id) => {
                step.outgoing.discard(id, step.report);
                return Ok(());
            }
            ControlMessage::Credit(count) => {
                step.outgoing.add_credits(count);
                return Ok(());
            }
            ControlMessage::Eager(envelope) => (envelope, None),
            ControlMessage::Announce(remote) => (remote.envelope, Some(Payload::Remote(remote))),
        };
        self.last += 1;
        let (id, comm_id, is_eager) = (self.last, envelope.key.comm_id, payload.is_none());
        if is_eager && rest.len() as u64 != envelope.length {
            return Err("received a truncated message".to_owned());
        }
        let status = || step.context.shared.comm_status(comm_id);
        match self.queue.arrive(id, envelope, payload, status) {
            MatchResult::Deliver(recv, None) => self.deliver(recv, rest, step.report),
            MatchResult::Queued if is_eager => {
                self.queue.supply(id, Payload::Bytes(rest.to_vec()));
            }
            MatchResult::Discard(None, error) => {
                self.credits += 1;
                step.report.add_error(comm_id, error);
            }
            result => return self.consume(step, comm_id, result),
        }
        Ok(())
    }

    /// Posts a receive.
    pub fn receive(&mut self, step: &mut RecvStep<'_>, recv: UserRecv) -> LinkResult {
        let comm_id = recv.envelope.key.comm_id;
        let result = self.queue.post(recv);
        self.consume(step, comm_id, result)
    }

    /// Delivers, clears to send or discards a message.
    fn consume(
        &mut self,
        step: &mut RecvStep<'_>,
        comm_id: u64,
        result: MatchResult<UserBuffer, Payload>,
    ) -> LinkResult {
        let (recv, payload) = match result {
            MatchResult::Deliver(recv, payload) => (Some(recv), payload),
            MatchResult::Discard(payload, error) => {
                step.report.add_error(comm_id, error);
                (None, payload)
            }
            MatchResult::Queued => return Ok(()),
        };
        match (recv, payload) {
            (Some(recv), Some(Payload::Bytes(bytes))) => self.deliver(recv, &bytes, step.report),
            (Some(recv), Some(Payload::Remote(remote))) => {
                self.credits += 1;
                self.clear_to_send(step, remote, Destination::User(recv))?;
            }
            (None, Some(Payload::Remote(Announcement { id, .. }))) => {
                self.credits += 1;
                step.outgoing.reply(ControlMessage::Discard(id), &[]);
            }
            (None, Some(Payload::Bytes(_))) => self.credits += 1,
            // An unexpected message that is being fetched.
            (_, None) => {}
        }
        Ok(())
    }

    /// Delivers a whole message.
    fn deliver(&mut self, mut recv: UserRecv, bytes: &[u8], report: &mut Report) {
        self.credits += 1;
        recv.buffer.write(0, bytes);
        report.add_moved(recv.envelope.key.comm_id, bytes.len());
        report.completed.push((recv.envelope.key.comm_id, recv.request));
    }

    /// Clears a large message to send.
    fn clear_to_send(
        &mut self,
        step: &mut RecvStep<'_>,
        Announcement { id, envelope, chunk_bytes }: Announcement,
        destination: Destination,
    ) -> LinkResult {
        let chunk_bytes = chunk_bytes as usize;
        if !(SLOT_BYTES..=CHUNK_BYTES).contains(&chunk_bytes) {
            return Err(format!(
                "the peer's chunks have {chunk_bytes} bytes, expected {SLOT_BYTES} to {CHUNK_BYTES}"
            ));
        }
        if !chunk_bytes.is_multiple_of(CHUNK_ALIGNMENT) {
            return Err(format!(
                "the peer's chunks have {chunk_bytes} bytes, which splits elements"
            ));
        }
        let mut handle = None;
        if let RecvLink::Unused = self.data {
            let (listening_at, listener) = Listener::new(&step.context.net, step.context.device)?;
            self.data = RecvLink::Pending(listener);
            handle = Some(listening_at);
        }
        let handle = handle.as_ref().map_or(&[][..], |handle| handle);
        if !step.outgoing.reply(ControlMessage::ClearToSend(id), handle) {
            return Err(
                "the connection to the peer, which large messages need, is broken".to_owned()
            );
        }
        self.last += 1;
        let message = IncomingMessage::new(envelope, chunk_bytes, destination);
        self.receiving.insert(self.last, message);
        Ok(())
    }

    fn poll_data(&mut self, step: &mut RecvStep<'_>) -> LinkResult<bool> {
        let mut moved = false;
        for _ in 0..MAX_POLLS {
            let Some(connection) = self.data.get() else { break };
            let Some((request, size)) = connection.poll()? else { break };
            moved = true;
            let Some(message) = self.receiving.get_mut(&request.message) else {
                connection.release(request.memory);
                continue;
            };
            step.report.add_moved(message.chunks.comm_id(), size);
            let received = message.received(&request, size);
            connection.release(request.memory);
            received?;
            message.release_memory(connection)?;
            if message.chunks.is_done()
                && let Some(message) = self.receiving.remove(&request.message)
            {
                self.finish(step, message)?;
            }
        }
        Ok(moved)
    }

    /// All chunks of a message have arrived.
    fn finish(&mut self, step: &mut RecvStep<'_>, message: IncomingMessage) -> LinkResult {
        let comm_id = message.chunks.comm_id();
        let is_unexpected = message.is_unexpected;
        match message.destination {
            Destination::User(recv) => step.report.completed.push((comm_id, recv.request)),
            Destination::Unexpected(id, bytes) => {
                let result = self.queue.supply(id, Payload::Bytes(bytes));
                self.consume(step, comm_id, result)?;
            }
            // Nothing consumes it any more.
            Destination::Nowhere => self.credits += u64::from(is_unexpected),
        }
        Ok(())
    }

    /// Posts receives of chunks, message by message.
    fn post_data(&mut self) -> LinkResult {
        if self.receiving.is_empty() {
            return Ok(());
        }
        let Some(connection) = self.data.ready(CHUNK_BYTES)? else { return Ok(()) };
        for (id, message) in &mut self.receiving {
            while !message.chunks.is_posted() {
                let has_room = connection.in_flight() < MAX_CHUNKS;
                if !has_room || !message.post_chunk(*id, connection)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether a large unexpected message is still at the sender.
    pub fn has_remote(&self) -> bool {
        self.queue.any_payload(|payload| matches!(payload, Payload::Remote(_)))
    }

    /// Fetches large unexpected messages: the sender may be blocked in one of them while this rank waits
    /// for a later one. Without memory for it, a message stays at its sender.
    pub fn fetch_unexpected(&mut self, step: &mut RecvStep<'_>) -> LinkResult {
        let fetch = |payload: &Payload| match payload {
            Payload::Remote(remote) => {
                Some((*remote, alloc_unexpected(remote.envelope.length as usize)?))
            }
            Payload::Bytes(_) => None,
        };
        while let Some((id, (remote, bytes))) = self.queue.take_payload(fetch) {
            self.clear_to_send(step, remote, Destination::Unexpected(id, bytes))?;
        }
        Ok(())
    }

    /// Stops delivering to user memory of a communicator.
    pub fn cancel(&mut self, comm_id: u64) -> LinkResult {
        self.queue.cancel(comm_id);
        let of_comm = |message: &&mut IncomingMessage| message.chunks.comm_id() == comm_id;
        for message in self.receiving.values_mut().filter(of_comm) {
            if let Destination::User(_) = message.destination {
                message.destination = Destination::Nowhere;
            }
            if let Some(connection) = self.data.get() {
                message.release_memory(connection)?;
            }
        }
        Ok(())
    }

    /// Whether user memory of a communicator is in use.
    pub fn uses_memory_of(&mut self, comm_id: u64) -> bool {
        self.data.get().is_some_and(|data| data.requests().any(|request| request.is_of(comm_id)))
    }

    /// Discards the unexpected messages of a communicator.
    pub fn close(&mut self, step: &mut RecvStep<'_>, comm_id: u64) -> LinkResult {
        for payload in self.queue.close(comm_id) {
            let result = MatchResult::Discard(Some(payload), None);
            self.consume(step, comm_id, result)?;
        }
        Ok(())
    }

    pub fn is_broken(&self) -> bool {
        matches!(self.control, RecvLink::Broken)
    }

    /// Closes the connections. The plug-in accesses no user memory afterwards.
    pub fn fail(&mut self) {
        (self.control, self.data) = (RecvLink::Broken, RecvLink::Broken);
        self.failure = None;
        self.receiving.clear();
    }
}
