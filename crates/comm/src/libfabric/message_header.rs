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
    pub fn encode(&self, into: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(into) = into.get_mut(at..at + bytes.len()) {
                into.copy_from_slice(bytes);
            }
        };
        put(0, &self.job.to_le_bytes());
        put(8, &self.from.to_le_bytes());
        match self.kind {
            HeaderKind::Credit(count) => {
                put(12, &0u32.to_le_bytes());
                put(16, &count.to_le_bytes());
            }
            HeaderKind::Message(message) => {
                put(12, &1u32.to_le_bytes());
                put(16, &message.sequence.to_le_bytes());
                put(24, &message.first_chunk.to_le_bytes());
                put(32, &message.chunk_bytes.to_le_bytes());
                put(36, &[0; 4]);
                put(40, &message.envelope.encode());
            }
        }
    }

    /// Decodes untrusted bytes; `None` if they are malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; MESSAGE_HEADER_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let (job, from, kind) = (word(0), word(8) as u32, word(8) >> 32);
        let kind = match kind {
            0 => HeaderKind::Credit(word(16)),
            1 => {
                let envelope = Envelope::decode(header.last_chunk()?)?;
                let (sequence, first_chunk, chunk_bytes) = (word(16), word(24), word(32) as u32);
                let chunks = envelope.length.div_ceil(u64::from(chunk_bytes).max(1));
                first_chunk.checked_add(chunks)?;
                HeaderKind::Message(Message { sequence, envelope, first_chunk, chunk_bytes })
            }
            _ => return None,
        };
        Some(Self { job, from, kind })
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
                let mut bytes = [0xaa; MESSAGE_HEADER_BYTES + 5];
                header.encode(&mut bytes);
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
