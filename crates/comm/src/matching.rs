//! Matching of incoming messages with posted receives: the posted-receive queue and the
//! unexpected-message queue of a peer. Does no I/O and touches no payload: it decides where a message
//! goes, and its caller moves the bytes.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::transport::{MatchKey, RequestId};

/// Matches messages of a sender with posted receives. Messages with the same key match in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageKey {
    /// The communicator.
    pub comm_id: u64,
    /// Whether it is a point-to-point message with a tag.
    pub tagged: bool,
    /// The tag, or the sequence number of the collective.
    pub number: u64,
}

impl MessageKey {
    /// The key of a message during collective number `call`.
    pub fn new(comm_id: u64, match_key: MatchKey, call: u64) -> Self {
        match match_key {
            MatchKey::Collective => Self { comm_id, tagged: false, number: call },
            MatchKey::Tag(tag) => Self { comm_id, tagged: true, number: tag.into() },
        }
    }
}

/// What a message, or a receive, says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    pub key: MessageKey,
    /// The payload size in bytes.
    pub length: u64,
    /// Hash of the signature of the collective.
    pub signature_hash: u32,
}

/// Size of an encoded envelope. The last two bytes are zero.
pub const ENVELOPE_BYTES: usize = 32;

impl Envelope {
    /// The envelope in little-endian byte order.
    pub fn encode(&self) -> [u8; ENVELOPE_BYTES] {
        let Self { key, length, signature_hash } = self;
        let mut bytes = [0; ENVELOPE_BYTES];
        bytes[..8].copy_from_slice(&key.comm_id.to_le_bytes());
        bytes[8..16].copy_from_slice(&key.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        bytes[24..28].copy_from_slice(&signature_hash.to_le_bytes());
        bytes[28] = u8::from(key.tagged);
        bytes
    }

    /// Decodes an envelope; `None` if no message can be this long.
    pub fn decode(bytes: &[u8; ENVELOPE_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let key = MessageKey { comm_id: word(0), tagged: bytes[28] != 0, number: word(1) };
        let (length, signature_hash) = (word(2), word(3) as u32);
        let envelope = Self { key, length, signature_hash };
        (length <= isize::MAX as u64).then_some(envelope)
    }
}

/// The communicator of an incoming message, as this rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommStatus {
    /// This rank has not opened it yet.
    Unknown,
    /// The number of collectives started, and the hash of the current one's signature.
    Open { calls: u64, signature_hash: u32 },
    /// Messages that still arrive are discarded.
    Closed,
}

/// A message and the calls of this rank contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// A message belongs to a different call than this rank's.
    CallMismatch {
        /// The sequence number of the call.
        call: u64,
    },
    /// A message does not have the size of the posted receive.
    SizeMismatch {
        /// The receive.
        request: RequestId,
        /// Bytes sent.
        sent: u64,
        /// Bytes expected.
        expected: u64,
    },
}

/// A posted receive into a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedRecv<B> {
    pub envelope: Envelope,
    pub request: RequestId,
    pub buffer: B,
}

/// What to do with a message. The payload is `None` if it has not arrived yet.
#[derive(Debug, PartialEq, Eq)]
pub enum MatchResult<B, M> {
    /// Move the payload to the receive, now or as it arrives.
    Deliver(PostedRecv<B>, Option<M>),
    /// Drop the payload. The communicator fails with the error, if there is one.
    Discard(Option<M>, Option<ProtocolError>),
    /// Nothing: the message or the receive is queued. If the payload of a message has not arrived
    /// yet, buffer it and [`MatchQueue::supply`] it.
    Queued,
}

/// A message without a posted receive.
#[derive(Debug)]
struct Unexpected<M> {
    id: u64,
    envelope: Envelope,
    /// `None` while it is arriving.
    payload: Option<M>,
}

/// The posted receives and unexpected messages of a peer.
#[derive(Debug)]
pub struct MatchQueue<B, M> {
    /// Receives without a message, in posting order.
    posted: VecDeque<PostedRecv<B>>,
    /// Messages without a receive, in order of arrival.
    unexpected: VecDeque<Unexpected<M>>,
    /// Receives whose unexpected messages are still arriving.
    arriving: Vec<(u64, PostedRecv<B>)>,
    unexpected_bytes: u64,
}

impl<B, M> Default for MatchQueue<B, M> {
    fn default() -> Self {
        let (posted, unexpected) = (VecDeque::new(), VecDeque::new());
        Self { posted, unexpected, arriving: Vec::new(), unexpected_bytes: 0 }
    }
}

impl<B, M> MatchQueue<B, M> {
    /// Posts a receive.
    pub fn post(&mut self, recv: PostedRecv<B>) -> MatchResult<B, M> {
        let key = recv.envelope.key;
        let Some(at) = self.unexpected.iter().position(|one| one.envelope.key == key) else {
            self.posted.push_back(recv);
            return MatchResult::Queued;
        };
        let Some(Unexpected { id, envelope, payload }) = self.take_unexpected(at) else {
            return MatchResult::Queued;
        };
        match check(&envelope, &recv) {
            Err(error) => MatchResult::Discard(payload, Some(error)),
            Ok(()) if payload.is_some() => MatchResult::Deliver(recv, payload),
            Ok(()) => {
                self.arriving.push((id, recv));
                MatchResult::Queued
            }
        }
    }

    /// A message arrives, with its payload or followed by it. The caller chooses an ID that is unique
    /// among the messages of the peer; `status` is that of its communicator.
    pub fn arrive(
        &mut self,
        id: u64,
        envelope: Envelope,
        payload: Option<M>,
        status: impl FnOnce() -> CommStatus,
    ) -> MatchResult<B, M> {
        let posted = self.posted.iter().position(|recv| recv.envelope.key == envelope.key);
        if let Some(recv) = posted.and_then(|at| self.posted.remove(at)) {
            return match check(&envelope, &recv) {
                Ok(()) => MatchResult::Deliver(recv, payload),
                Err(error) => MatchResult::Discard(payload, Some(error)),
            };
        }
        match accept(&envelope, status()) {
            Ok(()) => {
                self.unexpected_bytes += envelope.length;
                self.unexpected.push_back(Unexpected { id, envelope, payload });
                MatchResult::Queued
            }
            Err(error) => MatchResult::Discard(payload, error),
        }
    }

    /// The payload of an unexpected message has arrived.
    pub fn supply(&mut self, id: u64, payload: M) -> MatchResult<B, M> {
        if let Some(at) = self.arriving.iter().position(|(arriving, _)| *arriving == id) {
            return MatchResult::Deliver(self.arriving.swap_remove(at).1, Some(payload));
        }
        match self.unexpected.iter_mut().find(|one| one.id == id) {
            Some(one) => {
                one.payload = Some(payload);
                MatchResult::Queued
            }
            // Its receive was cancelled or did not match, or its communicator was closed.
            None => MatchResult::Discard(Some(payload), None),
        }
    }

    /// Takes the payload of the first unexpected message for which `select` returns a value. It counts
    /// as arriving until it is supplied again.
    pub fn take_payload<T>(&mut self, select: impl Fn(&M) -> Option<T>) -> Option<(u64, T)> {
        self.unexpected.iter_mut().find_map(|one| {
            let selected = one.payload.as_ref().and_then(&select)?;
            one.payload = None;
            Some((one.id, selected))
        })
    }

    /// Whether the payload of any unexpected message satisfies a condition.
    pub fn any_payload(&self, condition: impl Fn(&M) -> bool) -> bool {
        self.unexpected.iter().any(|one| one.payload.as_ref().is_some_and(&condition))
    }

    /// Whether a receive waits for a message.
    pub fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Bytes of unexpected messages that arrived or are arriving.
    pub fn unexpected_bytes(&self) -> u64 {
        self.unexpected_bytes
    }

    /// Removes the receives of a communicator. Messages that are arriving for them are discarded.
    pub fn cancel(&mut self, comm_id: u64) {
        self.posted.retain(|recv| recv.envelope.key.comm_id != comm_id);
        self.arriving.retain(|(_, recv)| recv.envelope.key.comm_id != comm_id);
    }

    /// Cancels the receives of a communicator and returns its unexpected messages. Those that are
    /// still arriving are discarded when they have arrived.
    pub fn close(&mut self, comm_id: u64) -> Vec<M> {
        self.cancel(comm_id);
        let mut payloads = Vec::new();
        let of_comm = |one: &Unexpected<M>| one.envelope.key.comm_id == comm_id;
        while let Some(at) = self.unexpected.iter().position(of_comm) {
            payloads.extend(self.take_unexpected(at).and_then(|one| one.payload));
        }
        payloads
    }

    fn take_unexpected(&mut self, at: usize) -> Option<Unexpected<M>> {
        let one = self.unexpected.remove(at)?;
        self.unexpected_bytes -= one.envelope.length;
        Some(one)
    }
}

/// Whether a message is the one that a receive expects.
fn check<B>(envelope: &Envelope, recv: &PostedRecv<B>) -> Result<(), ProtocolError> {
    let (key, expected) = (recv.envelope.key, recv.envelope.length);
    if envelope.signature_hash != recv.envelope.signature_hash && !key.tagged {
        Err(ProtocolError::CallMismatch { call: key.number })
    } else if envelope.length != expected {
        let (request, sent) = (recv.request, envelope.length);
        Err(ProtocolError::SizeMismatch { request, sent, expected })
    } else {
        Ok(())
    }
}

/// Whether an unexpected message may still be received later. A message of a finished call, or of the
/// current call with another signature, is an error.
fn accept(envelope: &Envelope, status: CommStatus) -> Result<(), Option<ProtocolError>> {
    let Envelope { key, signature_hash: hash, .. } = *envelope;
    match status {
        CommStatus::Closed => Err(None),
        CommStatus::Open { calls, signature_hash } if !key.tagged => {
            let is_late = key.number < calls || (key.number == calls && hash != signature_hash);
            let error = ProtocolError::CallMismatch { call: key.number };
            if is_late { Err(Some(error)) } else { Ok(()) }
        }
        CommStatus::Unknown | CommStatus::Open { .. } => Ok(()),
    }
}
