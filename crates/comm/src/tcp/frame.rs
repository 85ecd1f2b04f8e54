//! Framing of data connections. The first connection to a rank carries headers, each followed by its
//! message or the first stripe of it. The other connections carry only stripes, in the order of the
//! headers.

use std::ops::Range;

use crate::matching::{ENVELOPE_BYTES, Envelope};

/// Size of an encoded header.
pub const HEADER_BYTES: usize = ENVELOPE_BYTES;

/// Where an encoded header has the number of stripes.
const STRIPES_AT: usize = 29;

/// Smallest message that is striped over several connections.
pub const STRIPE_MIN_BYTES: usize = 128 << 10;

/// Smallest message that is striped over several NICs.
pub const RAIL_STRIPE_MIN_BYTES: usize = 64 << 10;

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub envelope: Envelope,
    /// The number of connections it is striped over.
    pub stripes: u8,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = self.envelope.encode();
        bytes[STRIPES_AT] = self.stripes;
        bytes
    }

    /// Decodes a header; `None` if no message can be this long.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let envelope = Envelope::decode(bytes)?;
        Some(Self { envelope, stripes: bytes[STRIPES_AT].max(1) })
    }
}

/// The byte range of a stripe. Stripes start at multiples of 64, so elements are not split.
pub fn stripe(length: usize, stripe: usize, stripes: usize) -> Range<usize> {
    let size = length.div_ceil(stripes.max(1)).next_multiple_of(64);
    let start = size.saturating_mul(stripe).min(length);
    start..start.saturating_add(size).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::MessageKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(comm_id: u64, number: u64, length: u64, signature_hash: u32, tagged: bool) {
            let key = MessageKey { comm_id, tagged, number };
            let header = Header { envelope: Envelope { key, length, signature_hash }, stripes: 3 };
            let expected = (length <= isize::MAX as u64).then_some(header);
            prop_assert_eq!(Header::decode(&header.encode()), expected);
        }

        #[test]
        fn headers_from_peers_have_valid_stripes(bytes: [u8; HEADER_BYTES]) {
            let Some(header) = Header::decode(&bytes) else { return Ok(()) };
            let (length, stripes) = (header.envelope.length as usize, usize::from(header.stripes));
            let sizes = (0..stripes).map(|i| stripe(length, i, stripes).len());
            prop_assert_eq!(sizes.sum::<usize>(), length);
        }

        #[test]
        fn stripes_partition_the_message(length in 0usize..100_000, stripes in 1usize..9) {
            let mut next = 0;
            for i in 0..stripes {
                let range = stripe(length, i, stripes);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.start.is_multiple_of(64) || range.is_empty());
                next = range.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
