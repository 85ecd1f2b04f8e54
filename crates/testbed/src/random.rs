//! Reproducible random values.

/// A seeded random number generator (SplitMix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose sequence depends on the seed only.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer in `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// An integer in `min..=max`.
    pub fn within(&mut self, min: u32, max: u32) -> u32 {
        min + self.below(u64::from(max - min + 1)) as u32
    }

    /// One of several values.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}
