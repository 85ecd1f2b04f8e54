//! How long the rest of a run takes, from how long the rows before took.

/// Up to this it is not the bytes that take the time.
const PROPORTIONAL: u64 = 1 << 20;

/// What is left of a run: small sizes take as long as small ones did, large ones in proportion.
/// Asking costs the same however many rows there are.
#[derive(Debug, Default)]
pub struct Left {
    small: Rows,
    large: Rows,
}

/// Rows that are alike, counted so that each unit takes the same time.
#[derive(Debug, Default)]
struct Rows {
    left: f64,
    done: f64,
    seconds: f64,
}

impl Left {
    /// All of these rows are to be done.
    pub fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut left = Self::default();
        for size in sizes {
            left.of(size).left += units(size);
        }
        left
    }

    /// A row is done.
    pub fn done(&mut self, size: u64, seconds: f64) {
        let rows = self.of(size);
        rows.left = (rows.left - units(size)).max(0.0);
        rows.done += units(size);
        rows.seconds += seconds;
    }

    /// The seconds that the others will take; none as long as nothing is known.
    pub fn seconds(&self) -> f64 {
        let Self { small, large } = self;
        let of_small = small.each().or(large.each()).unwrap_or_default();
        let of_large = large.each().or(small.each()).unwrap_or_default();
        small.left * of_small + large.left * of_large
    }

    fn of(&mut self, size: u64) -> &mut Rows {
        if size <= PROPORTIONAL { &mut self.small } else { &mut self.large }
    }
}

impl Rows {
    /// The seconds of one.
    fn each(&self) -> Option<f64> {
        (self.done > 0.0).then(|| self.seconds / self.done)
    }
}

fn units(size: u64) -> f64 {
    size.max(PROPORTIONAL) as f64 / PROPORTIONAL as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1 << 20;

    #[test]
    fn large_sizes_take_their_time() {
        let sizes = [8, 16, 32, 4 * MEGABYTE, 8 * MEGABYTE, 16 * MEGABYTE];
        let mut left = Left::new(sizes);
        assert_eq!(left.seconds(), 0.0, "nothing is known");
        left.done(8, 0.5);
        assert_eq!(left.seconds(), 0.5 * (2 + 4 + 8 + 16) as f64);
        left.done(16, 0.25);
        left.done(32, 0.25);
        left.done(4 * MEGABYTE, 1.0);
        assert_eq!(left.seconds(), 6.0, "as large ones took, not as small ones");
        left.done(8 * MEGABYTE, 2.0);
        left.done(16 * MEGABYTE, 4.0);
        assert_eq!(left.seconds(), 0.0);
    }

    #[test]
    fn the_next_table_is_known_from_the_one_before() {
        let mut left = Left::new([64 * MEGABYTE, 8, 8]);
        left.done(64 * MEGABYTE, 64.0);
        assert_eq!(left.seconds(), 2.0);
        left.done(8, 0.125);
        assert_eq!(left.seconds(), 0.125);
    }
}
