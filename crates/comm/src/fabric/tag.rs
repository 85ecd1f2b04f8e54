//! The tags of libfabric's messages: what opens a message of ours has one tag, whoever sends it;
//! each part of a long one has its own.

/// How tags are made in a job of so many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    rank_bits: u32,
    part_bits: u32,
}

/// So many parts of one sender may be on their way before numbers are used again.
const FEWEST_PART_BITS: u32 = 16;

impl Tags {
    /// With so many bits; `None`: they are too few.
    pub fn new(bits: u32, ranks: u32) -> Option<Self> {
        let rank_bits = u32::BITS - ranks.saturating_sub(1).leading_zeros();
        let part_bits = bits.checked_sub(1 + rank_bits)?.min(32);
        (part_bits >= FEWEST_PART_BITS).then_some(Self { rank_bits, part_bits })
    }

    /// What opens messages.
    pub fn opening(self) -> u64 {
        0
    }

    /// A part, by its sender and its number.
    pub fn part(self, from: u32, number: u64) -> u64 {
        let number = number & ((1 << self.part_bits) - 1);
        let is_part = 1 << (self.rank_bits + self.part_bits);
        is_part | (u64::from(from) << self.part_bits) | number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_messages_have_one_tag() {
        let tags = Tags::new(48, 1000).unwrap();
        let mut all = vec![tags.opening()];
        for from in [0, 1, 999] {
            all.extend([0, 1, 70_000].map(|number| tags.part(from, number)));
        }
        assert!(all.iter().all(|tag| *tag < 1 << 48));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn too_few_bits_are_refused() {
        assert!(Tags::new(64, u32::MAX).is_some());
        assert!(Tags::new(20, 1000).is_none());
        assert!(Tags::new(0, 1).is_none());
        assert_eq!(Tags::new(64, 1).unwrap().part(0, 1 << 40), 1 << 32);
    }
}
