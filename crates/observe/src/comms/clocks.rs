//! One time line for all processes.
//!
//! Processes of one boot of a host share its monotonic clock. The monotonic clocks of two hosts differ by
//! a constant. Their real-time clocks give a first estimate of it. Collectives bound it from both sides:
//! no rank leaves a synchronising collective before every rank has entered it.

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::operation::{ClockSync, Operation, Timing};

/// Fastest drift between the clocks of GPU and host, as a fraction: 1 / 20,000, 50 ppm.
const DRIFT: u64 = 20_000;
/// Times beyond 146 years are those of a damaged file.
const MAX_TIME: u64 = 1 << 62;

/// A time of a file as a signed number that can be added and subtracted.
pub fn nanoseconds(time: u64) -> i64 {
    time.min(MAX_TIME) as i64
}

/// Converts device times of a file into host times.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostClock {
    /// How far the device clock is ahead, and the host time of that estimate.
    ahead: Option<(i64, u64)>,
}

impl HostClock {
    /// Applies a record of the clocks. Estimates are from below, and some are far below: an estimate is
    /// lowered only by as much as clocks drift.
    pub fn update(&mut self, sync: &ClockSync) {
        let Some(new) = sync.device_ahead else { return };
        let ahead = match self.ahead {
            Some((known, since)) => {
                let drift = nanoseconds(sync.host.saturating_sub(since) / DRIFT);
                new.max(known.saturating_sub(drift))
            }
            None => new,
        };
        self.ahead = Some((ahead, sync.host));
    }

    /// Start and end of an operation on the host clock. `None` if they were not measured. If the device
    /// clock is unknown, the operation starts when it was enqueued.
    #[inline]
    pub fn span(&self, operation: &Operation) -> Option<(i64, i64)> {
        let start = match (operation.timing, self.ahead) {
            (Timing::None, _) => return None,
            (Timing::Host, _) => nanoseconds(operation.start),
            (Timing::Device, Some((ahead, _))) => {
                nanoseconds(operation.start).saturating_sub(ahead)
            }
            (Timing::Device, None) => nanoseconds(operation.enqueued),
        };
        let duration = nanoseconds(operation.end.saturating_sub(operation.start));
        Some((start, start.saturating_add(duration)))
    }
}

/// Limits of a clock's offset relative to another clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Not below.
    pub low: i64,
    /// Not above.
    pub high: i64,
}

impl Bounds {
    /// No limits.
    pub const NONE: Self = Self { low: i64::MIN, high: i64::MAX };

    /// Limits of the offset of clock `b` relative to clock `a` from one collective: the last start and
    /// the first end of the ranks on each clock.
    pub fn of_collective(a: (i64, i64), b: (i64, i64)) -> Self {
        Self { low: a.0.saturating_sub(b.1), high: a.1.saturating_sub(b.0) }
    }

    /// Both limits hold.
    pub fn intersect(&mut self, other: Self) {
        self.low = self.low.max(other.low);
        self.high = self.high.min(other.high);
    }

    /// The offset that is closest to an estimate, and how far it may be off.
    fn choose(self, estimate: i64) -> (i64, u64) {
        if self.low > self.high {
            // A clock was adjusted during the job, or a device clock is known badly.
            let middle = self.high.saturating_add((self.low.abs_diff(self.high) / 2) as i64);
            return (middle, self.low.abs_diff(self.high) / 2);
        }
        let chosen = estimate.clamp(self.low, self.high);
        (chosen, chosen.abs_diff(self.low).max(chosen.abs_diff(self.high)))
    }
}

/// How a clock is converted to the reference clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Added to times of the clock.
    pub offset: i64,
    /// How far the offset may be off, in nanoseconds. `None`: by real-time clocks only.
    pub uncertainty: Option<u64>,
}

impl Alignment {
    /// A time on the reference clock.
    pub fn convert(&self, time: i64) -> i64 {
        time.saturating_add(self.offset)
    }
}

/// Aligns clocks to the first one. `realtime_ahead` has, for each clock, how far the real time is ahead of
/// it; `bounds` the limits of the offset of clock `b` relative to clock `a`, by `(a, b)`.
pub fn align(
    realtime_ahead: &[Option<i64>],
    bounds: &BTreeMap<(usize, usize), Bounds>,
) -> Vec<Alignment> {
    let reference = realtime_ahead.first().copied().flatten().unwrap_or(0);
    let estimate = |clock: usize| realtime_ahead.get(clock).copied().flatten();
    let by_realtime = |clock: usize| estimate(clock).map_or(0, |e| e.saturating_sub(reference));
    let unaligned = |clock| Alignment { offset: by_realtime(clock), uncertainty: None };
    let mut aligned: Vec<Alignment> = (0..realtime_ahead.len()).map(unaligned).collect();
    let neighbours = neighbours(realtime_ahead.len(), bounds);
    // The path with the least uncertainty, from the reference to each clock.
    let mut open = BTreeSet::from([(0u64, 0usize)]);
    let mut done = vec![false; realtime_ahead.len()];
    if let Some(first) = aligned.first_mut() {
        first.uncertainty = Some(0);
    }
    while let Some((so_far, clock)) = open.pop_first() {
        if done.get(clock).copied().unwrap_or(true) {
            continue;
        }
        done[clock] = true;
        for &(next, limits) in neighbours[clock].iter().filter(|(next, _)| !done[*next]) {
            let estimated = by_realtime(next).saturating_sub(by_realtime(clock));
            let (difference, off) = limits.choose(estimated);
            let uncertainty = so_far.saturating_add(off);
            if aligned[next].uncertainty.is_none_or(|known| uncertainty < known) {
                let offset = aligned[clock].offset.saturating_add(difference);
                aligned[next] = Alignment { offset, uncertainty: Some(uncertainty) };
                open.insert((uncertainty, next));
            }
        }
    }
    aligned
}

/// The limits of each clock's neighbours relative to it.
fn neighbours(
    clocks: usize,
    bounds: &BTreeMap<(usize, usize), Bounds>,
) -> Vec<Vec<(usize, Bounds)>> {
    let mut all = vec![Vec::new(); clocks];
    for (&(a, b), &limits) in bounds.iter().filter(|((a, b), _)| (*a).max(*b) < clocks) {
        all[a].push((b, limits));
        all[b].push((a, Bounds { low: negated(limits.high), high: negated(limits.low) }));
    }
    all
}

fn negated(value: i64) -> i64 {
    value.checked_neg().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Limits from collectives of some hosts: `clocks` has the true offset of each host's clock.
    fn collective(clocks: &[i64], hosts: &[usize], starts: &[i64], extra: &[i64]) -> Vec<Bounds> {
        let last = hosts.iter().map(|&host| starts[host]).max().unwrap();
        let local = |host: usize| (starts[host] - clocks[host], last + extra[host] - clocks[host]);
        hosts[1..].iter().map(|&host| Bounds::of_collective(local(hosts[0]), local(host))).collect()
    }

    proptest! {
        #[test]
        fn offsets_are_within_their_uncertainty(
            clocks in proptest::collection::vec(-1_000_000_000i64..1_000_000_000, 4),
            errors in proptest::collection::vec(-5_000_000i64..5_000_000, 4),
            calls in proptest::collection::vec(
                (
                    proptest::collection::vec(0i64..100_000, 4),
                    proptest::collection::vec(0i64..50_000, 4),
                    proptest::sample::select(vec![vec![0, 1], vec![1, 2, 3], vec![0, 1, 2, 3]]),
                ),
                0..30,
            ),
        ) {
            let mut bounds: BTreeMap<(usize, usize), Bounds> = BTreeMap::new();
            for (starts, extra, hosts) in &calls {
                let limits = collective(&clocks, hosts, starts, extra);
                for (&host, limit) in hosts[1..].iter().zip(limits) {
                    bounds.entry((hosts[0], host)).or_insert(Bounds::NONE).intersect(limit);
                }
            }
            let realtime: Vec<_> = clocks.iter().zip(&errors).map(|(c, e)| Some(c + e)).collect();
            for (host, alignment) in align(&realtime, &bounds).iter().enumerate() {
                let exact = clocks[host] - clocks[0];
                match alignment.uncertainty {
                    Some(off) => prop_assert!(alignment.offset.abs_diff(exact) <= off),
                    None => prop_assert_eq!(alignment.offset - exact, errors[host] - errors[0]),
                }
            }
        }
    }

    #[test]
    fn collectives_correct_a_real_time_clock_that_is_off() {
        // The second host's clock is 1,000 behind; its real time is wrong by 500.
        let bounds = Bounds::of_collective((100, 140), (-880, -850));
        assert_eq!(bounds, Bounds { low: 950, high: 1020 });
        let aligned = align(&[Some(5000), Some(6500)], &BTreeMap::from([((0, 1), bounds)]));
        assert_eq!(aligned[0], Alignment { offset: 0, uncertainty: Some(0) });
        assert_eq!(aligned[1], Alignment { offset: 1020, uncertainty: Some(70) });
        assert_eq!(aligned[1].convert(-880), 140);
    }

    #[test]
    fn contradicting_limits_give_their_middle() {
        let bounds = Bounds { low: 100, high: 60 };
        assert_eq!(bounds.choose(0), (80, 20));
        assert_eq!(Bounds { low: i64::MAX, high: i64::MIN }.choose(0).1, u64::MAX / 2);
    }

    #[test]
    fn clocks_without_a_path_use_real_time() {
        let aligned = align(&[Some(10), Some(25), None], &BTreeMap::new());
        assert_eq!(aligned[1], Alignment { offset: 15, uncertainty: None });
        assert_eq!(aligned[2], Alignment { offset: 0, uncertainty: None });
        assert!(align(&[], &BTreeMap::new()).is_empty());
    }

    #[test]
    fn device_clock_estimates_drop_only_by_the_drift() {
        let mut clock = HostClock::default();
        let mut update = |host, ahead| {
            clock.update(&ClockSync { host, realtime: 0, device_ahead: ahead });
            clock.ahead.unwrap().0
        };
        assert_eq!(update(0, Some(1_000_000)), 1_000_000);
        assert_eq!(update(200_000_000, Some(-5_000_000)), 990_000);
        assert_eq!(update(400_000_000, None), 990_000);
        assert_eq!(update(400_000_000, Some(999_000)), 999_000);
    }
}
