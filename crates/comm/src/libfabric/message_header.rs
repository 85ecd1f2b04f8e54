//! The header of a message between two ranks, followed by the message itself if it is small (eager).
//! The chunks of a large message are sent separately (rendezvous).

use crate::matching::{ENVELOPE_BYTES, Envelope};

/// Size of an encoded header.
pub const MESSAGE_HEADER_BYTES: usize = 40 + ENVELOPE_BYTES;

/// A message under the header tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The job key. Stray messages of other jobs are dropped.
    pub job: u64,
    /// The sender.
    pub from: u32,
    pub kind: HeaderKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderKind {
    /// Announces a message.
    Message(Message),
    /// Grants credits: this many messages of the receiver have been consumed.
    Credit(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The sequence number between the two ranks.
    pub sequence: u64,
    pub envelope: Envelope,
    /// The number of the first chunk of a large message.
    pub first_chunk: u64,
    /// The chunk size of a large message; 0 if it is eager.
    pub chunk_bytes: u32,
}

impl MessageHeader {
    pub fn encode(&self) -> [u8; MESSAGE_HEADER_BYTES] {
        let (kind, words, envelope) = match &self.kind {
            HeaderKind::Credit(count) => (0, [*count, 0, 0], [0; ENVELOPE_BYTES]),
            HeaderKind::Message(message) => {
                let Message { sequence, envelope, first_chunk, chunk_bytes } = message;
                (1, [*sequence, *first_chunk, (*chunk_bytes).into()], envelope.encode())
            }
        };
        let from = u64::from(self.from) | kind << 32;
        let mut bytes = [0; MESSAGE_HEADER_BYTES];
        let (encoded, last) = bytes.split_at_mut(MESSAGE_HEADER_BYTES - ENVELOPE_BYTES);
        for (into, word) in encoded.chunks_exact_mut(8).zip([self.job, from].iter().chain(&words)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        last.copy_from_slice(&envelope);
        bytes
    }

    /// Decodes untrusted bytes; `None` if they are malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; MESSAGE_HEADER_BYTES] = bytes.first_chunk()?;
        let (words, _) = header.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let kind = match word(1) >> 32 {
            0 => HeaderKind::Credit(word(2)),
            1 => {
                let envelope = Envelope::decode(header.last_chunk()?)?;
                let (sequence, first_chunk, chunk_bytes) = (word(2), word(3), word(4) as u32);
                let chunks = envelope.length.div_ceil(u64::from(chunk_bytes).max(1));
                first_chunk.checked_add(chunks)?;
                HeaderKind::Message(Message { sequence, envelope, first_chunk, chunk_bytes })
            }
            _ => return None,
        };
        Some(Self { job: word(0), from: word(1) as u32, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::MessageKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(
            job: u64, from: u32, sequence: u64, length in 0..=isize::MAX as u64, chunk_bytes: u32,
        ) {
            let key = MessageKey { comm_id: job ^ 1, tagged: true, number: 7 };
            let envelope = Envelope { key, length, signature_hash: 9 };
            let message = Message { sequence, envelope, first_chunk: sequence / 3, chunk_bytes };
            for kind in [HeaderKind::Message(message), HeaderKind::Credit(sequence)] {
                let header = MessageHeader { job, from, kind };
                let bytes = [&header.encode()[..], &[0xaa; 5]].concat();
                prop_assert_eq!(MessageHeader::decode(&bytes), Some(header));
            }
        }

        #[test]
        fn malformed_headers_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let header = MessageHeader::decode(&bytes);
            prop_assert!(bytes.len() >= MESSAGE_HEADER_BYTES || header.is_none());
        }
    }
}
