//! The last accesses of an allocation, by bytes: tensors that share an allocation are accessed by different
//! streams at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use super::streams::Clock;

/// The last accesses of ranges of bytes, which do not overlap.
#[derive(Debug, Default)]
pub struct AccessLog {
    /// By the first byte of a range: its end, and the last operation of each stream that accessed it.
    ranges: BTreeMap<usize, (usize, Clock)>,
}

impl AccessLog {
    /// Whether all accesses happened before a point.
    pub fn happened_before(&self, point: &Clock) -> bool {
        self.ranges.values().all(|(_, accesses)| point.includes(accesses))
    }

    /// Adds an access by an operation of a stream, whose clock is given. Returns false if an earlier access of
    /// these bytes did not happen before.
    pub fn add(&mut self, bytes: Range<usize>, stream: usize, clock: &Clock) -> bool {
        if bytes.is_empty() {
            return true;
        }
        self.split_at(bytes.start);
        self.split_at(bytes.end);
        let overlapping = self.ranges.range(bytes.clone());
        if !overlapping.map(|(_, (_, accesses))| accesses).all(|accesses| clock.includes(accesses))
        {
            return false;
        }
        let starts: Vec<usize> =
            self.ranges.range(bytes.clone()).map(|(start, _)| *start).collect();
        starts.iter().for_each(|start| drop(self.ranges.remove(start)));
        // What happens after this operation happens after those before it.
        let mut accesses = Clock::default();
        accesses.set(stream, clock.number(stream));
        self.ranges.insert(bytes.start, (bytes.end, accesses));
        true
    }

    /// Splits the range that contains a byte before it.
    fn split_at(&mut self, byte: usize) {
        if let Some((_, (end, accesses))) = self.ranges.range_mut(..byte).next_back()
            && *end > byte
        {
            let behind = (std::mem::replace(end, byte), accesses.clone());
            self.ranges.insert(byte, behind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(points: &[(usize, u64)]) -> Clock {
        let mut clock = Clock::default();
        points.iter().for_each(|(stream, number)| clock.set(*stream, *number));
        clock
    }

    #[test]
    fn only_overlapping_bytes_need_an_order() {
        let mut log = AccessLog::default();
        assert!(log.add(0..10, 1, &clock(&[(1, 1)])));
        assert!(log.add(10..20, 2, &clock(&[(2, 1)])));
        assert!(!log.add(9..12, 2, &clock(&[(2, 2)])), "byte 9 of stream 1");
        assert!(!log.add(5..6, 2, &clock(&[(2, 2)])));
        // After an event of stream 1.
        assert!(log.add(5..12, 2, &clock(&[(1, 1), (2, 2)])));
        assert!(log.add(0..5, 1, &clock(&[(1, 2)])));
        assert!(!log.add(4..6, 1, &clock(&[(1, 3)])), "byte 5 of stream 2");
        assert!(log.add(7..7, 3, &clock(&[(3, 1)])));
        assert!(!log.happened_before(&clock(&[(1, 2)])));
        assert!(log.happened_before(&clock(&[(1, 2), (2, 2)])));
    }
}
