//! A seeded random number generator for reproducible tests.

/// Knuth's MMIX linear congruential generator.
pub struct SeededRng(pub u64);

impl SeededRng {
    /// A random number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A random element.
    pub fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
