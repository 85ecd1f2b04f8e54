//! The message by which a receiver grants a group of sends.

use super::MAX_GROUPED_RECVS;

const HEADER_BYTES: usize = 16;
const RECV_BYTES: usize = 12;

/// The largest encoded message.
pub const CONTROL_BYTES: usize = HEADER_BYTES + MAX_GROUPED_RECVS * RECV_BYTES;

/// A group of posted receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearToSend {
    /// The sender's connection.
    pub connection: u32,
    /// The key of that connection. Messages with another are strays.
    pub key: u64,
    /// Number of the group, in the order of `irecv`.
    pub sequence: u16,
    /// Receives of the group.
    pub count: u8,
    /// Tags of the host, and sizes in bytes, of which `count` are valid.
    pub recvs: [(i32, u64); MAX_GROUPED_RECVS],
}

impl ClearToSend {
    /// Encodes the message. Returns its length.
    pub fn encode(&self, bytes: &mut [u8; CONTROL_BYTES]) -> usize {
        let count = usize::from(self.count).min(MAX_GROUPED_RECVS);
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.connection.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[14..16].copy_from_slice(&[count as u8, 0]);
        let (recvs, _) = bytes[HEADER_BYTES..].as_chunks_mut::<RECV_BYTES>();
        for (bytes, (tag, size)) in recvs.iter_mut().zip(&self.recvs[..count]) {
            bytes[..4].copy_from_slice(&tag.to_le_bytes());
            bytes[4..].copy_from_slice(&size.to_le_bytes());
        }
        HEADER_BYTES + count * RECV_BYTES
    }

    /// Decodes a message; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (recvs_bytes, trailing) = rest.as_chunks::<RECV_BYTES>();
        let [_, _, _, _, _, _, _, _, c0, c1, c2, c3, s0, s1, count, reserved] = *header;
        let is_valid = (1..=MAX_GROUPED_RECVS).contains(&usize::from(count))
            && recvs_bytes.len() == usize::from(count)
            && trailing.is_empty()
            && reserved == 0;
        if !is_valid {
            return None;
        }
        let mut recvs = [(0, 0); MAX_GROUPED_RECVS];
        for (recv, bytes) in recvs.iter_mut().zip(recvs_bytes) {
            let [t0, t1, t2, t3, size @ ..] = *bytes;
            *recv = (i32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(size));
        }
        Some(Self {
            connection: u32::from_le_bytes([c0, c1, c2, c3]),
            key: u64::from_le_bytes(*header.first_chunk()?),
            sequence: u16::from_le_bytes([s0, s1]),
            count,
            recvs,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_the_wire(
            connection: u32, key: u64, sequence: u16,
            recvs in proptest::collection::vec(any::<(i32, u64)>(), 1..=MAX_GROUPED_RECVS),
        ) {
            let count = recvs.len() as u8;
            let mut all = [(0, 0); MAX_GROUPED_RECVS];
            all[..recvs.len()].copy_from_slice(&recvs);
            let message = ClearToSend { connection, key, sequence, count, recvs: all };
            let mut bytes = [0; CONTROL_BYTES];
            let length = message.encode(&mut bytes);
            prop_assert_eq!(ClearToSend::decode(&bytes[..length]), Some(message));
            prop_assert_eq!(ClearToSend::decode(&bytes[..length - 1]), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let message = ClearToSend::decode(&bytes);
            prop_assert!(bytes.len() >= HEADER_BYTES + RECV_BYTES || message.is_none());
        }
    }
}
