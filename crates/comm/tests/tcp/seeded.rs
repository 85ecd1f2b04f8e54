//! Numbers from a seed, so that what fails can be had again.

/// The generator of Knuth's MMIX.
pub struct Seeded(pub u64);

impl Seeded {
    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// One of several.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

#[allow(dead_code, reason = "one test has its own")]
/// How many cases, unless the variable `REGATTA_TEST_CASES` says otherwise.
pub fn cases(usual: u64) -> u64 {
    std::env::var("REGATTA_TEST_CASES").map_or(usual, |n| n.parse().unwrap())
}
