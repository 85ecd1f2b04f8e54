//! A histogram of durations for quantiles: 16 buckets per power of two.

/// Buckets per power of two, as a power of two. A quantile is off by 1/32 of the value at most.
const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;

/// Counts of durations. Only the range between the shortest and the longest duration is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations {
    /// Bucket of the first count.
    first: usize,
    counts: Vec<u64>,
}

impl Durations {
    /// Counts a duration.
    #[inline]
    pub fn add(&mut self, nanoseconds: u64) {
        self.add_bucket(bucket(nanoseconds), 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (offset, &count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add_bucket(other.first + offset, count);
        }
    }

    #[inline]
    fn add_bucket(&mut self, bucket: usize, count: u64) {
        if let Some(slot) = self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            *slot += count;
        } else {
            self.extend_to(bucket);
            self.counts[bucket - self.first] += count;
        }
    }

    #[cold]
    fn extend_to(&mut self, bucket: usize) {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            let missing = self.first - bucket;
            self.counts.splice(0..0, std::iter::repeat_n(0, missing));
            self.first = bucket;
        }
        let length = (bucket - self.first + 1).max(self.counts.len());
        self.counts.resize(length, 0);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration that a fraction of all durations does not exceed; `None` without durations.
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let total = self.count();
        let wanted = ((total as f64 * fraction).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let position = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        position.map(|offset| middle(self.first + offset))
    }
}

/// The bucket of a value: exact below [`SUB`], then [`SUB`] buckets per power of two.
#[inline]
fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    (u64::from(shift + 1) * SUB + (value >> shift) - SUB) as usize
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = (bucket / SUB - 1) as u32;
    let low = (SUB + bucket % SUB) << shift;
    low + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buckets_are_ordered_and_close(value in any::<u64>(), shift in 0..64u32) {
            let value = value >> shift;
            let found = middle(bucket(value));
            let error = found.abs_diff(value);
            prop_assert!(error <= value / 31 + 1, "{found} for {value}");
            prop_assert!(bucket(value) <= bucket(value.saturating_add(1)));
            prop_assert_eq!(bucket(found), bucket(value));
        }

        #[test]
        fn quantiles_are_within_three_percent(
            mut values in proptest::collection::vec(0u64..1 << 40, 1..200),
            fraction in 0.0..=1.0f64,
        ) {
            let mut all = Durations::default();
            values.iter().for_each(|&value| all.add(value));
            values.sort_unstable();
            let wanted = ((values.len() as f64 * fraction).ceil() as usize).clamp(1, values.len());
            let (exact, found) = (values[wanted - 1], all.quantile(fraction).unwrap());
            prop_assert!(found.abs_diff(exact) <= exact / 31 + 1, "{found}, not {exact}");
        }

        #[test]
        fn merged_histograms_count_the_same(
            first in proptest::collection::vec(any::<u64>(), 0..50),
            second in proptest::collection::vec(0u64..10_000, 0..50),
        ) {
            let of = |values: &[u64]| {
                let mut durations = Durations::default();
                values.iter().for_each(|&value| durations.add(value));
                durations
            };
            let mut merged = of(&first);
            merged.merge(&of(&second));
            prop_assert_eq!(merged, of(&[first, second].concat()));
        }
    }

    #[test]
    fn no_durations_have_no_quantile() {
        assert_eq!(Durations::default().quantile(0.5), None);
    }
}
