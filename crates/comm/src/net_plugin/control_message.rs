//! Messages on the control connection between two ranks: small messages of users (eager), and the
//! rendezvous of large ones, whose chunks have a connection of their own.

use crate::matching::{ENVELOPE_BYTES, Envelope};

/// Size of the buffers of a control connection.
pub const SLOT_BYTES: usize = 16 << 10;

/// Size of an encoded header.
pub const HEADER_BYTES: usize = 24 + ENVELOPE_BYTES;

/// The largest message that is sent eagerly, after its header.
pub const EAGER_BYTES: usize = SLOT_BYTES - HEADER_BYTES;

/// A control message, without the bytes that follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMessage {
    /// A small message, which follows.
    Eager(Envelope),
    /// A large message, which stays at the sender until it is cleared to send.
    Announce(Announcement),
    /// The receiver has memory for an announced message. Chunks are sent in the order of these messages.
    /// The first one is followed by the handle of the listener for chunks.
    ClearToSend(u64),
    /// The receiver does not want an announced message.
    Discard(u64),
    /// This many messages have been consumed.
    Credit(u64),
}

/// A large message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The sender's number of the message.
    pub id: u64,
    pub envelope: Envelope,
    pub chunk_bytes: u32,
}

impl ControlMessage {
    /// Encodes the header, with the key of this job.
    pub fn encode(&self, job: u64) -> [u8; HEADER_BYTES] {
        let none = [0; ENVELOPE_BYTES];
        let (kind, number, chunk_bytes, envelope) = match self {
            Self::Eager(envelope) => (1, 0, 0, envelope.encode()),
            Self::Announce(Announcement { id, envelope, chunk_bytes }) => {
                (2, *id, *chunk_bytes, envelope.encode())
            }
            Self::ClearToSend(id) => (3, *id, 0, none),
            Self::Discard(id) => (4, *id, 0, none),
            Self::Credit(count) => (5, *count, 0, none),
        };
        let mut bytes = [0; HEADER_BYTES];
        let (words, last) = bytes.split_at_mut(HEADER_BYTES - ENVELOPE_BYTES);
        let kind = u64::from(chunk_bytes) << 32 | kind;
        for (into, word) in words.chunks_exact_mut(8).zip([job, kind, number]) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        last.copy_from_slice(&envelope);
        bytes
    }

    /// Decodes a message of a peer into its header and the bytes that follow; `None` if it is malformed
    /// or of another job.
    pub fn decode(bytes: &[u8], job: u64) -> Option<(Self, &[u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (words, _) = header.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let (kind, number) = (word(1), word(2));
        let envelope = || Envelope::decode(header.last_chunk()?);
        let message = match kind as u32 {
            1 => Self::Eager(envelope()?),
            2 => {
                let (envelope, chunk_bytes) = (envelope()?, (kind >> 32) as u32);
                Self::Announce(Announcement { id: number, envelope, chunk_bytes })
            }
            3 => Self::ClearToSend(number),
            4 => Self::Discard(number),
            5 => Self::Credit(number),
            _ => return None,
        };
        (word(0) == job).then_some((message, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::MessageKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn control_messages_round_trip(
            job: u64, id: u64, length in 0..=isize::MAX as u64, chunk_bytes: u32, rest: Vec<u8>,
        ) {
            let key = MessageKey { comm_id: job ^ 1, tagged: true, number: 7 };
            let envelope = Envelope { key, length, signature_hash: 9 };
            let announcement = Announcement { id, envelope, chunk_bytes };
            for message in [
                ControlMessage::Eager(envelope),
                ControlMessage::Announce(announcement),
                ControlMessage::ClearToSend(id),
                ControlMessage::Discard(id),
                ControlMessage::Credit(id),
            ] {
                let bytes = [&message.encode(job)[..], &rest].concat();
                prop_assert_eq!(ControlMessage::decode(&bytes, job), Some((message, &rest[..])));
                prop_assert_eq!(ControlMessage::decode(&bytes, job ^ 1), None);
            }
        }

        #[test]
        fn malformed_messages_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let decoded = ControlMessage::decode(&bytes, 0);
            prop_assert!(bytes.len() >= HEADER_BYTES || decoded.is_none());
        }
    }
}
