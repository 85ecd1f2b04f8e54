//! What goes before a message on a connection. The stream of the first connection to a rank is
//! heads, each followed by its message or the first stripe of it; the others carry stripes only, in
//! the order of the heads.

use std::ops::Range;

use crate::transport::Lane;

/// Bytes of a head.
pub const HEAD: usize = 32;

/// Messages shorter than this are not cut into stripes.
pub const STRIPED_FROM: usize = 128 << 10;

/// The same where connections are on different networks.
pub const STRIPED_OVER_RAILS: usize = 64 << 10;

/// Which messages belong together, whoever sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Of which communicator.
    pub channel: u64,
    /// Of a collective or with a tag.
    pub tagged: bool,
    /// The how-manieth collective, or which tag.
    pub number: u64,
}

impl Key {
    /// Of a lane, while the collective of that number goes on.
    pub fn new(channel: u64, lane: Lane, call: u64) -> Self {
        match lane {
            Lane::Call => Self { channel, tagged: false, number: call },
            Lane::Tag(tag) => Self { channel, tagged: true, number: tag.into() },
        }
    }
}

/// What is said of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Where it belongs.
    pub key: Key,
    /// Bytes.
    pub length: u64,
    /// What its collective is, as a number: that of other ones differs.
    pub what: u32,
    /// Over how many connections it comes.
    pub stripes: u8,
}

impl Head {
    /// As bytes.
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.key.channel.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.what.to_le_bytes());
        bytes[28] = u8::from(self.key.tagged);
        bytes[29] = self.stripes;
        bytes
    }

    /// Of bytes.
    pub fn decode(bytes: &[u8; HEAD]) -> Self {
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let key = Key { channel: number(0), tagged: bytes[28] != 0, number: number(8) };
        let what = number(24) as u32;
        Self { key, length: number(16), what, stripes: bytes[29].max(1) }
    }
}

/// The part of a message that the connection of this number carries. Stripes begin at multiples of
/// 64, so that no element is cut.
pub fn stripe(length: usize, stripe: usize, stripes: usize) -> Range<usize> {
    let size = length.div_ceil(stripes.max(1)).next_multiple_of(64);
    let start = (size * stripe).min(length);
    start..(start + size).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_survives(channel: u64, number: u64, length: u64, what: u32, tagged: bool) {
            let key = Key { channel, tagged, number };
            let head = Head { key, length, what, stripes: 3 };
            prop_assert_eq!(Head::decode(&head.encode()), head);
        }

        #[test]
        fn stripes_are_the_whole(length in 0usize..100_000, stripes in 1usize..9) {
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
