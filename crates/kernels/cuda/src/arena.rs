//! Sub-allocation of one memory: which offsets are in use. No memory is accessed here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Alignment of offsets and sizes: that of `cudaMalloc`, so that vectors and GEMM operands stay aligned.
pub(crate) const ALIGNMENT: usize = 512;

/// Smaller requests are placed at the end of a free range: small tensors live long, and must not split the
/// memory that large buffers are freed to and allocated from again.
const SMALL_BYTES: usize = 1 << 20;

/// A best-fit allocator over offsets, which coalesces free ranges. Its operations take logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    bytes: usize,
    used: usize,
    peak: usize,
    /// Lengths of the ranges in use, by their start.
    used_ranges: BTreeMap<usize, usize>,
    /// Lengths of the free ranges, by their start. No two of them touch.
    free_ranges: BTreeMap<usize, usize>,
    /// Length and start of the free ranges.
    free_by_len: BTreeSet<(usize, usize)>,
}

/// Bytes that a request occupies.
pub(crate) fn padded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

impl Arena {
    /// An arena of this size, rounded down to the alignment.
    pub fn new(bytes: usize) -> Self {
        let mut arena = Self { bytes: bytes / ALIGNMENT * ALIGNMENT, ..Self::default() };
        arena.insert_free(0..arena.bytes);
        arena
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes in use, with padding.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Most bytes that were in use at a time.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Bytes of the largest free range.
    pub fn largest_free(&self) -> usize {
        self.free_by_len.last().map_or(0, |(len, _)| *len)
    }

    /// The offset of a new range in the smallest free range that holds it; `None` if there is none.
    pub fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let len = padded(bytes)?;
        let (free_len, free_start) = *self.free_by_len.range((len, 0)..).next()?;
        self.remove_free(free_start, free_len);
        let free = free_start..free_start + free_len;
        let start = if len < SMALL_BYTES { free.end - len } else { free.start };
        self.insert_free(free.start..start);
        self.insert_free(start + len..free.end);
        self.used_ranges.insert(start, len);
        self.used += len;
        self.peak = self.peak.max(self.used);
        Some(start)
    }

    /// Frees the range that was allocated at an offset. Returns false if there is none.
    pub fn free(&mut self, start: usize) -> bool {
        let Some(len) = self.used_ranges.remove(&start) else { return false };
        self.used -= len;
        let mut range = start..start + len;
        if let Some((before, len)) = self.free_ranges.range(..start).next_back()
            && before + len == start
        {
            range.start = *before;
            self.remove_free(range.start, start - range.start);
        }
        if let Some(len) = self.free_ranges.get(&range.end).copied() {
            self.remove_free(range.end, len);
            range.end += len;
        }
        self.insert_free(range);
        true
    }

    fn insert_free(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.free_ranges.insert(range.start, range.len());
            self.free_by_len.insert((range.len(), range.start));
        }
    }

    fn remove_free(&mut self, start: usize, len: usize) {
        self.free_ranges.remove(&start);
        self.free_by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    /// Free ranges are those between the ranges in use, each once.
    fn check(arena: &Arena) {
        let ranges = |ranges: &BTreeMap<usize, usize>| -> Vec<Range<usize>> {
            ranges.iter().map(|(start, len)| *start..start + len).collect()
        };
        let mut all = ranges(&arena.used_ranges);
        let used: usize = all.iter().map(Range::len).sum();
        assert_eq!(used, arena.used());
        let free = ranges(&arena.free_ranges);
        assert!(free.windows(2).all(|two| two[0].end < two[1].start), "{free:?} touch");
        all.extend(free);
        all.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in all {
            assert_eq!((range.start, range.start % ALIGNMENT), (end, 0), "a gap or an overlap");
            end = range.end;
        }
        assert_eq!(end, arena.bytes());
        let by_len: BTreeSet<_> =
            arena.free_ranges.iter().map(|(start, len)| (*len, *start)).collect();
        assert_eq!(by_len, arena.free_by_len);
    }

    proptest! {
        #[test]
        fn ranges_do_not_overlap_and_all_frees_coalesce(
            bytes in 0usize..40 * MIB,
            operations in prop::collection::vec((0usize..6 * MIB, any::<bool>(), any::<prop::sample::Index>()), 0..80),
        ) {
            let mut arena = Arena::new(bytes);
            let (mut live, mut peak) = (Vec::new(), 0);
            for (bytes, is_small, which) in operations {
                // As often allocations as frees, of sizes on both sides of the limit.
                if bytes % 2 == 0 && !live.is_empty() {
                    prop_assert!(arena.free(live.swap_remove(which.index(live.len()))));
                } else {
                    let bytes = if is_small { bytes / 100 } else { bytes };
                    let largest = arena.largest_free();
                    let start = arena.allocate(bytes);
                    prop_assert_eq!(start.is_some(), padded(bytes).unwrap() <= largest);
                    live.extend(start);
                }
                peak = peak.max(arena.used());
                check(&arena);
            }
            prop_assert_eq!(arena.peak(), peak);
            live.into_iter().for_each(|start| assert!(arena.free(start)));
            prop_assert_eq!((arena.used(), arena.largest_free()), (0, arena.bytes()));
        }
    }

    #[test]
    fn the_smallest_sufficient_range_is_used() {
        let mut arena = Arena::new(10 * MIB);
        let starts = [2, 1, 3, 1, 3].map(|mib| arena.allocate(mib * MIB).unwrap());
        assert_eq!(starts, [0, 2, 3, 6, 7].map(|mib| mib * MIB));
        assert!(arena.free(starts[0]) && arena.free(starts[2]));
        assert_eq!(arena.allocate(2 * MIB), Some(0));
        assert_eq!(arena.allocate(4 * MIB), None);
        assert_eq!(
            (arena.used(), arena.peak(), arena.largest_free()),
            (7 * MIB, 10 * MIB, 3 * MIB)
        );
    }

    #[test]
    fn small_ranges_are_at_the_end() {
        let mut arena = Arena::new(8 * MIB);
        assert_eq!(arena.allocate(1), Some(8 * MIB - ALIGNMENT));
        assert_eq!(arena.allocate(2 * MIB), Some(0));
        assert_eq!(arena.allocate(0), Some(8 * MIB - 2 * ALIGNMENT));
    }

    #[test]
    fn unknown_offsets_and_too_large_requests_are_refused() {
        let mut arena = Arena::new(2 * MIB + 5);
        assert!(!arena.free(0));
        assert_eq!([2 * MIB + 1, usize::MAX].map(|bytes| arena.allocate(bytes)), [None; 2]);
        let start = arena.allocate(2 * MIB).unwrap();
        assert!(arena.free(start) && !arena.free(start));
        assert_eq!(Arena::new(ALIGNMENT - 1).allocate(1), None);
    }
}
