//! Messages to a rank: a control connection for small messages and replies, and a data connection for the
//! chunks of large messages, in the order in which the receiver clears them.

use std::collections::{BTreeMap, VecDeque};

use super::chunks::Chunks;
use super::connection::{Connection, Request, RequestMemory};
use super::control_message::{Announcement, ControlMessage, EAGER_BYTES, HEADER_BYTES, SLOT_BYTES};
use super::incoming::ending_bytes;
use super::peer::{CHUNK_BYTES, LinkContext, LinkResult, MAX_CHUNKS, SEND_WINDOW, SLOTS};
use super::setup::SendLink;
use super::table::{Handle, NetError};
use crate::network::{Report, UserSend};
use crate::transport::RequestId;

/// Requests of a control connection with this number ask the peer for a message; others have 0.
const CLEAR_TO_SEND: u64 = 1;

fn number(message: &ControlMessage) -> u64 {
    if matches!(message, ControlMessage::ClearToSend(_)) { CLEAR_TO_SEND } else { 0 }
}

/// A large message.
struct OutgoingMessage {
    id: u64,
    request: RequestId,
    /// The user memory; `None` if it was cancelled.
    user: Option<*const u8>,
    chunks: Chunks,
}

impl OutgoingMessage {
    /// Posts the next chunk. Returns false if the plug-in cannot take it now.
    fn post_chunk(&mut self, connection: &mut Connection, chunk_bytes: usize) -> LinkResult<bool> {
        let (message, at, chunks) = (self.id, self.chunks.at, &mut self.chunks);
        let whole = chunk_bytes.min(chunks.length() - at);
        let (memory, size) = match self.user {
            Some(user) => {
                let all = std::ptr::slice_from_raw_parts_mut(user.cast_mut(), chunks.length());
                (chunks.user_memory(all, connection)?, whole)
            }
            // The receiver has posted a receive. A shorter chunk than expected ends the message.
            None => (RequestMemory::Bounce(connection.bounce_buffer()?), ending_bytes(whole)),
        };
        let request = Request { memory, message, at, size };
        // SAFETY: user memory is valid until the message completes or is cancelled, which waits for it.
        Ok(unsafe { chunks.post(request, whole, connection) }?)
    }

    /// Ends the registration once the user memory is no longer read.
    fn release_memory(&mut self, connection: &mut Connection) -> Result<(), NetError> {
        self.chunks.release_memory(self.user.is_none(), connection)
    }
}

/// The send half of the links to a peer.
pub struct Outgoing {
    control: SendLink,
    data: SendLink,
    /// Control messages about messages of the peer, with the bytes that follow. Sent first.
    replies: VecDeque<(ControlMessage, Vec<u8>)>,
    /// Messages that have not been sent or announced yet.
    messages: VecDeque<UserSend>,
    /// Large messages that are not cleared to send.
    announced: BTreeMap<u64, OutgoingMessage>,
    /// Large messages whose chunks are sent, in the order of their clearance.
    sending: VecDeque<OutgoingMessage>,
    /// The number of the last large message.
    last: u64,
    /// Messages that the peer has not consumed.
    unconsumed: u64,
}

// SAFETY: the senders guarantee that their memory is valid, and one thread at a time uses it.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Messages to the rank that listens at this handle.
    pub fn new(handle: Handle) -> Self {
        Self {
            control: SendLink::Pending(Box::new(handle)),
            data: SendLink::Unused,
            replies: VecDeque::new(),
            messages: VecDeque::new(),
            announced: BTreeMap::new(),
            sending: VecDeque::new(),
            last: 0,
            unconsumed: 0,
        }
    }

    pub fn send(&mut self, message: UserSend) {
        self.messages.push_back(message);
    }

    /// Queues a reply to the peer. Returns false if it cannot be reached.
    pub fn reply(&mut self, message: ControlMessage, rest: &[u8]) -> bool {
        self.replies.push_back((message, rest.to_vec()));
        !self.is_broken()
    }

    pub fn is_broken(&self) -> bool {
        matches!(self.control, SendLink::Broken)
    }

    /// The peer has posted receives for an announced message.
    pub fn clear_to_send(&mut self, id: u64, handle: &[u8]) -> LinkResult {
        if let (SendLink::Unused, Ok(handle)) = (&self.data, Handle::try_from(handle)) {
            self.data = SendLink::Pending(Box::new(handle));
        }
        let message = self.announced.remove(&id);
        self.sending.push_back(message.ok_or("the peer cleared an unknown message to send")?);
        Ok(())
    }

    /// The peer does not want an announced message. For the sender it is complete.
    pub fn discard(&mut self, id: u64, report: &mut Report) {
        let message = self.announced.remove(&id).filter(|message| message.user.is_some());
        report.completed.extend(message.map(|message| (message.chunks.comm_id(), message.request)));
    }

    /// The peer has consumed messages.
    pub fn add_credits(&mut self, count: u64) {
        self.unconsumed = self.unconsumed.saturating_sub(count);
    }

    /// Makes progress without blocking. Returns whether a request has completed.
    pub fn progress(&mut self, context: &LinkContext, report: &mut Report) -> LinkResult<bool> {
        let mut moved = self.poll_control()?;
        moved |= self.poll_data(report)?;
        self.post_control(context, report)?;
        self.post_data(context)?;
        Ok(moved)
    }

    fn poll_control(&mut self) -> LinkResult<bool> {
        let Some(connection) = self.control.get() else { return Ok(false) };
        let mut moved = false;
        while let Some((request, _)) = connection.poll()? {
            connection.release(request.memory);
            moved = true;
        }
        Ok(moved)
    }

    fn poll_data(&mut self, report: &mut Report) -> LinkResult<bool> {
        let Some(connection) = self.data.get() else { return Ok(false) };
        let mut moved = false;
        while let Some((request, _)) = connection.poll()? {
            moved = true;
            let at = self.sending.iter().position(|message| message.id == request.message);
            if let Some(at) = at {
                self.sending[at].chunks.completed(&request);
            }
            connection.release(request.memory);
            let Some(at) = at else { continue };
            let message = &mut self.sending[at];
            report.add_moved(message.chunks.comm_id(), request.size);
            message.release_memory(connection)?;
            if message.chunks.is_done()
                && let Some(done) = self.sending.remove(at).filter(|done| done.user.is_some())
            {
                report.completed.push((done.chunks.comm_id(), done.request));
            }
        }
        Ok(moved)
    }

    /// Sends replies, and messages as far as the window allows.
    fn post_control(&mut self, context: &LinkContext, report: &mut Report) -> LinkResult {
        loop {
            let may_send = self.unconsumed < SEND_WINDOW;
            let message = self.messages.front().copied().filter(|_| may_send);
            if self.replies.is_empty() && message.is_none() || self.is_broken() {
                return Ok(());
            }
            let ready = self.control.ready(&context.net, context.device, SLOT_BYTES)?;
            let Some(connection) = ready.filter(|control| control.in_flight() < SLOTS) else {
                return Ok(());
            };
            let id = self.last + 1;
            let (header, rest) = match (self.replies.front(), &message) {
                (Some((reply, rest)), _) => (*reply, rest.as_slice()),
                (None, Some(message)) => encode(message, id, context.chunk_bytes),
                (None, None) => return Ok(()),
            };
            let mut bounce = connection.bounce_buffer()?;
            let size = HEADER_BYTES + rest.len();
            bounce.buffer.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode(context.job));
            bounce.buffer.bytes_mut()[HEADER_BYTES..size].copy_from_slice(rest);
            let memory = RequestMemory::Bounce(bounce);
            let request = Request { memory, message: number(&header), at: 0, size };
            // SAFETY: the request owns its memory.
            if !unsafe { connection.post(request) }? {
                return Ok(());
            }
            if self.replies.pop_front().is_none() {
                self.sent(header, report);
            }
        }
    }

    /// The first of the messages was sent with this header.
    fn sent(&mut self, header: ControlMessage, report: &mut Report) {
        let Some(UserSend { envelope, request, start }) = self.messages.pop_front() else { return };
        self.unconsumed += 1;
        let ControlMessage::Announce(Announcement { id, .. }) = header else {
            report.add_moved(envelope.key.comm_id, envelope.length as usize);
            return report.completed.push((envelope.key.comm_id, request));
        };
        self.last = id;
        let (user, chunks) = (Some(start), Chunks::new(envelope));
        let message = OutgoingMessage { id, request, user, chunks };
        self.announced.insert(id, message);
    }

    /// Posts chunks, message by message.
    fn post_data(&mut self, context: &LinkContext) -> LinkResult {
        let Some(first) = self.sending.iter().position(|message| !message.chunks.is_posted())
        else {
            return Ok(());
        };
        let ready = self.data.ready(&context.net, context.device, CHUNK_BYTES)?;
        let Some(connection) = ready else { return Ok(()) };
        for message in self.sending.range_mut(first..) {
            while !message.chunks.is_posted() {
                let has_room = connection.in_flight() < MAX_CHUNKS;
                if !has_room || !message.post_chunk(connection, context.chunk_bytes)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Stops reading user memory of a communicator. Announced messages are ended when they are cleared.
    pub fn cancel(&mut self, comm_id: u64) -> LinkResult {
        self.messages.retain(|message| message.envelope.key.comm_id != comm_id);
        for message in self.announced.values_mut().chain(&mut self.sending) {
            if message.chunks.comm_id() == comm_id {
                message.user = None;
                if let Some(connection) = self.data.get() {
                    message.release_memory(connection)?;
                }
            }
        }
        Ok(())
    }

    /// Whether user memory of a communicator is in use.
    pub fn uses_memory_of(&mut self, comm_id: u64) -> bool {
        self.data.get().is_some_and(|data| data.requests().any(|request| request.is_of(comm_id)))
    }

    /// Whether a message of a communicator is cleared to send and not sent, so that the peer waits for it.
    pub fn is_sending(&self, comm_id: u64) -> bool {
        self.sending.iter().any(|message| message.chunks.comm_id() == comm_id)
    }

    /// Whether messages wait for a reply of the peer, or will: to be cleared to send, or for credits.
    pub fn needs_replies(&self) -> bool {
        let is_large = |message: &UserSend| message.envelope.length as usize > EAGER_BYTES;
        let waits_for_credits = self.unconsumed >= SEND_WINDOW && !self.messages.is_empty();
        !self.announced.is_empty() || waits_for_credits || self.messages.iter().any(is_large)
    }

    /// Whether all that was queued has been sent.
    pub fn is_idle(&mut self) -> bool {
        let in_flight = self.control.get().map_or(0, |control| control.in_flight());
        let is_queued = !self.replies.is_empty() || !self.messages.is_empty();
        self.is_broken() || (in_flight == 0 && !is_queued && self.sending.is_empty())
    }

    /// Closes the connections. The plug-in accesses no user memory afterwards. Returns whether the peer
    /// will never send a message that it is asked for.
    pub fn fail(&mut self) -> bool {
        let posted = self.control.get().into_iter().flat_map(|control| control.requests());
        let has_request = posted.into_iter().any(|request| request.message == CLEAR_TO_SEND)
            || self.replies.iter().any(|(reply, _)| number(reply) == CLEAR_TO_SEND);
        (self.control, self.data) = (SendLink::Broken, SendLink::Broken);
        self.replies.clear();
        self.messages.clear();
        self.announced.clear();
        self.sending.clear();
        has_request
    }
}

/// The header of a message, and the message itself if it is small.
fn encode(message: &UserSend, id: u64, chunk_bytes: usize) -> (ControlMessage, &[u8]) {
    let (envelope, length) = (message.envelope, message.envelope.length as usize);
    if length > EAGER_BYTES {
        let chunk_bytes = chunk_bytes as u32;
        return (ControlMessage::Announce(Announcement { id, envelope, chunk_bytes }), &[]);
    }
    let bytes = match length {
        0 => &[],
        // SAFETY: user memory is valid until the message completes.
        _ => unsafe { std::slice::from_raw_parts(message.start, length) },
    };
    (ControlMessage::Eager(envelope), bytes)
}
