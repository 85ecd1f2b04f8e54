//! Estimates the remaining time of a run from the rows measured so far.

/// Up to this size a call is latency-bound and takes a constant time.
const LATENCY_BOUND_BYTES: u64 = 1 << 20;

/// Remaining work in two size classes: latency-bound rows take a constant time, larger ones a time
/// proportional to the size. Updates and queries are O(1).
#[derive(Debug, Default)]
pub struct Eta {
    small: SizeClass,
    large: SizeClass,
}

/// Rows of one class in units of equal time.
#[derive(Debug, Default)]
struct SizeClass {
    remaining: f64,
    done: f64,
    seconds: f64,
}

impl Eta {
    /// All rows are still to be measured.
    pub fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut eta = Self::default();
        for size in sizes {
            eta.class_mut(size).remaining += units(size);
        }
        eta
    }

    /// Records a measured row.
    pub fn done(&mut self, size: u64, seconds: f64) {
        let class = self.class_mut(size);
        class.remaining = (class.remaining - units(size)).max(0.0);
        class.done += units(size);
        class.seconds += seconds;
    }

    /// Estimated seconds for the remaining rows; 0 before the first row.
    pub fn seconds(&self) -> f64 {
        let Self { small, large } = self;
        let per_small = small.seconds_per_unit().or(large.seconds_per_unit()).unwrap_or_default();
        let per_large = large.seconds_per_unit().or(small.seconds_per_unit()).unwrap_or_default();
        small.remaining * per_small + large.remaining * per_large
    }

    fn class_mut(&mut self, size: u64) -> &mut SizeClass {
        if size <= LATENCY_BOUND_BYTES { &mut self.small } else { &mut self.large }
    }
}

impl SizeClass {
    fn seconds_per_unit(&self) -> Option<f64> {
        (self.done > 0.0).then(|| self.seconds / self.done)
    }
}

fn units(size: u64) -> f64 {
    size.max(LATENCY_BOUND_BYTES) as f64 / LATENCY_BOUND_BYTES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1 << 20;

    #[test]
    fn large_sizes_are_estimated_in_proportion() {
        let sizes = [8, 16, 32, 4 * MEGABYTE, 8 * MEGABYTE, 16 * MEGABYTE];
        let mut eta = Eta::new(sizes);
        assert_eq!(eta.seconds(), 0.0, "no row is measured yet");
        eta.done(8, 0.5);
        assert_eq!(eta.seconds(), 0.5 * (2 + 4 + 8 + 16) as f64);
        eta.done(16, 0.25);
        eta.done(32, 0.25);
        eta.done(4 * MEGABYTE, 1.0);
        assert_eq!(eta.seconds(), 6.0, "estimated from large rows only");
        eta.done(8 * MEGABYTE, 2.0);
        eta.done(16 * MEGABYTE, 4.0);
        assert_eq!(eta.seconds(), 0.0);
    }

    #[test]
    fn classes_without_rows_use_the_other_class() {
        let mut eta = Eta::new([64 * MEGABYTE, 8, 8]);
        eta.done(64 * MEGABYTE, 64.0);
        assert_eq!(eta.seconds(), 2.0);
        eta.done(8, 0.125);
        assert_eq!(eta.seconds(), 0.125);
    }
}
