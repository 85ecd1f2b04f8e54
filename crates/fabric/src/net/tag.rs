//! libfabric tags. Clear-to-sends share one tag; each receive has its own.

/// Bits of the number of a connection.
pub const CONNECTION_BITS: u32 = 18;
const SEQUENCE_BITS: u32 = 16;
const INDEX_BITS: u32 = 3;

/// Bits in use. Slingshot has 48, and 40 in some modes.
pub const BITS: u32 = 1 + CONNECTION_BITS + SEQUENCE_BITS + INDEX_BITS;

/// The tag of clear-to-sends.
pub const CONTROL: u64 = 0;

/// The tag of a receive: its connection, the sequence number of its group, and the index in the group.
pub fn data(connection: u32, sequence: u16, index: usize) -> u64 {
    let is_data = 1 << (BITS - 1);
    let connection = u64::from(connection) & ((1 << CONNECTION_BITS) - 1);
    let sequence = u64::from(sequence);
    is_data
        | connection << (SEQUENCE_BITS + INDEX_BITS)
        | sequence << INDEX_BITS
        | (index as u64 & ((1 << INDEX_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::net::MAX_GROUPED_RECVS;

    #[test]
    fn tags_are_unique_and_fit() {
        let mut all = HashSet::from([CONTROL]);
        let last = (1 << CONNECTION_BITS) - 1;
        for connection in [0, 1, last] {
            for sequence in [0, 1, u16::MAX] {
                for index in 0..MAX_GROUPED_RECVS {
                    let tag = data(connection, sequence, index);
                    assert!(tag < 1 << 40 && all.insert(tag));
                }
            }
        }
        const { assert!(MAX_GROUPED_RECVS <= 1 << INDEX_BITS) };
    }
}
