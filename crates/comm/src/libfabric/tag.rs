//! libfabric tags. All headers share one tag; each chunk of a large message has its own.

/// The tag layout of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricTags {
    rank_bits: u32,
    chunk_bits: u32,
}

/// The tag of headers.
pub const HEADER_TAG: u64 = 0;

/// Enough for the chunks of one sender in flight before numbers are reused.
const MIN_CHUNK_BITS: u32 = 16;

impl FabricTags {
    /// The layout for this many tag bits; `None` if they are too few.
    pub fn new(bits: u32, ranks: u32) -> Option<Self> {
        let rank_bits = u32::BITS - ranks.saturating_sub(1).leading_zeros();
        let chunk_bits = bits.checked_sub(1 + rank_bits)?.min(32);
        (chunk_bits >= MIN_CHUNK_BITS).then_some(Self { rank_bits, chunk_bits })
    }

    /// The tag of a chunk, by its sender and number.
    pub fn chunk(self, from: u32, number: u64) -> u64 {
        let number = number & ((1 << self.chunk_bits) - 1);
        let is_chunk = 1 << (self.rank_bits + self.chunk_bits);
        is_chunk | (u64::from(from) << self.chunk_bits) | number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_unique() {
        let tags = FabricTags::new(48, 1000).unwrap();
        let mut all = vec![HEADER_TAG];
        for from in [0, 1, 999] {
            all.extend([0, 1, 70_000].map(|number| tags.chunk(from, number)));
        }
        assert!(all.iter().all(|tag| *tag < 1 << 48));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn too_few_bits_are_rejected() {
        assert!(FabricTags::new(64, u32::MAX).is_some());
        assert!(FabricTags::new(20, 1000).is_none());
        assert!(FabricTags::new(0, 1).is_none());
        assert_eq!(FabricTags::new(64, 1).unwrap().chunk(0, 1 << 40), 1 << 32);
    }
}
