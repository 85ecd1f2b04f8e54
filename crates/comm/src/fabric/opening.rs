//! What opens a message between two ranks: where it belongs, how long it is, and if it is short the
//! message itself. Parts of a long one come by themselves.

use crate::tcp::{HEAD, Head};

/// Bytes before a short message.
pub const OPENING: usize = 40 + HEAD;

/// What comes under the tag of openings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Of which job: strays of another are thrown away.
    pub job: u64,
    /// Of which rank.
    pub from: u32,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message.
    Message(Message),
    /// So many openings of the receiver's are through: as many more may come.
    Taken(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The how-manieth of this rank to that.
    pub sequence: u64,
    pub head: Head,
    /// Of a long one, the number of its first part.
    pub first_part: u64,
    /// Of a long one, the bytes of each part but the last.
    pub part: u32,
}

impl Opening {
    pub fn encode(&self, into: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(into) = into.get_mut(at..at + bytes.len()) {
                into.copy_from_slice(bytes);
            }
        };
        put(0, &self.job.to_le_bytes());
        put(8, &self.from.to_le_bytes());
        match self.kind {
            Kind::Taken(count) => {
                put(12, &0u32.to_le_bytes());
                put(16, &count.to_le_bytes());
            }
            Kind::Message(message) => {
                put(12, &1u32.to_le_bytes());
                put(16, &message.sequence.to_le_bytes());
                put(24, &message.first_part.to_le_bytes());
                put(32, &message.part.to_le_bytes());
                put(36, &[0; 4]);
                put(40, &message.head.encode());
            }
        }
    }

    /// Of foreign bytes; `None`: it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let opening: &[u8; OPENING] = bytes.first_chunk()?;
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&opening[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let (job, from, kind) = (number(0), number(8) as u32, number(8) >> 32);
        let kind = match kind {
            0 => Kind::Taken(number(16)),
            1 => {
                let head = Head::decode(opening.last_chunk()?);
                let (sequence, first_part, part) = (number(16), number(24), number(32) as u32);
                Kind::Message(Message { sequence, head, first_part, part })
            }
            _ => return None,
        };
        Some(Self { job, from, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Key;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_opening_survives(job: u64, from: u32, sequence: u64, length: u64, part: u32) {
            let key = Key { channel: job ^ 1, tagged: true, number: 7 };
            let head = Head { key, length, what: 9, stripes: 1 };
            let message = Message { sequence, head, first_part: sequence / 3, part };
            for kind in [Kind::Message(message), Kind::Taken(sequence)] {
                let opening = Opening { job, from, kind };
                let mut bytes = [0xaa; OPENING + 5];
                opening.encode(&mut bytes);
                prop_assert_eq!(Opening::decode(&bytes), Some(opening));
            }
        }

        #[test]
        fn foreign_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let opening = Opening::decode(&bytes);
            prop_assert!(bytes.len() >= OPENING || opening.is_none());
        }
    }
}
