//! One time line for all processes.
//!
//! Processes of one boot of a host share its monotonic clock. The monotonic clocks of two hosts differ by
//! a constant. Collectives bound it from both sides: no rank leaves a synchronising collective before
//! every rank has entered it. Within the bounds, their ends tell it: they are nearly simultaneous. Hosts
//! without a common collective are aligned by their real-time clocks.

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::operation::{ClockSync, Operation, Timing};

/// Fastest drift between the clocks of GPU and host, as a fraction: 1 / 20,000, 50 ppm.
const DRIFT: u64 = 20_000;
/// Most differences between ends that are kept per pair of clocks.
const MAX_ENDS: usize = 512;
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
            return (estimate, self.low.abs_diff(self.high));
        }
        let chosen = estimate.clamp(self.low, self.high);
        (chosen, chosen.abs_diff(self.low).max(chosen.abs_diff(self.high)))
    }
}

/// What collectives tell of the offset of one clock relative to another.
#[derive(Debug, Clone)]
pub struct ClockPair {
    bounds: Bounds,
    /// Differences between the ends of every `stride`-th collective.
    ends: Vec<i64>,
    stride: u64,
    seen: u64,
}

impl Default for ClockPair {
    fn default() -> Self {
        Self { bounds: Bounds::NONE, ends: Vec::new(), stride: 1, seen: 0 }
    }
}

impl ClockPair {
    /// Adds a collective: the last start and the first end of its ranks on each clock.
    pub fn add(&mut self, a: (i64, i64), b: (i64, i64)) {
        self.bounds.intersect(Bounds::of_collective(a, b));
        if self.seen.is_multiple_of(self.stride) {
            self.ends.push(a.1.saturating_sub(b.1));
        }
        self.seen += 1;
        if self.ends.len() >= MAX_ENDS {
            self.stride *= 2;
            let mut position = 0;
            self.ends.retain(|_| {
                position += 1;
                position % 2 == 1
            });
        }
    }

    /// The offset, how far it may be off, and the median deviation of single collectives.
    fn offset(&self) -> (i64, u64, u64) {
        let mut ends = self.ends.clone();
        let middle = ends.len() / 2;
        if ends.is_empty() {
            return (0, u64::MAX, u64::MAX);
        }
        let estimate = *ends.select_nth_unstable(middle).1;
        let (offset, uncertainty) = self.bounds.choose(estimate);
        let mut deviations: Vec<u64> = ends.iter().map(|end| end.abs_diff(offset)).collect();
        (offset, uncertainty, *deviations.select_nth_unstable(middle).1)
    }
}

/// How a clock is converted to the reference clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Added to times of the clock.
    pub offset: i64,
    /// How far the offset may be off, in nanoseconds. `None`: by real-time clocks only.
    pub uncertainty: Option<u64>,
    /// The median deviation of the ends of collectives: how far the offset is probably off.
    pub deviation: u64,
}

impl Alignment {
    /// A time on the reference clock.
    pub fn convert(&self, time: i64) -> i64 {
        time.saturating_add(self.offset)
    }
}

/// Aligns clocks to the first one. `realtime_ahead` has, for each clock, how far the real time is ahead of
/// it; `pairs` what collectives tell of clock `b` relative to clock `a`, by `(a, b)`.
pub fn align(
    realtime_ahead: &[Option<i64>],
    pairs: &BTreeMap<(usize, usize), ClockPair>,
) -> Vec<Alignment> {
    let reference = realtime_ahead.first().copied().flatten().unwrap_or(0);
    let by_realtime = |ahead: &Option<i64>| Alignment {
        offset: ahead.map_or(0, |ahead| ahead.saturating_sub(reference)),
        uncertainty: None,
        deviation: 0,
    };
    let mut aligned: Vec<Alignment> = realtime_ahead.iter().map(by_realtime).collect();
    let neighbours = neighbours(realtime_ahead.len(), pairs);
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
        let Alignment { offset, deviation, .. } = aligned[clock];
        for edge in neighbours[clock].iter().filter(|edge| !done[edge.clock]) {
            let uncertainty = so_far.saturating_add(edge.uncertainty);
            if aligned[edge.clock].uncertainty.is_none_or(|known| uncertainty < known) {
                aligned[edge.clock] = Alignment {
                    offset: offset.saturating_add(edge.offset),
                    uncertainty: Some(uncertainty),
                    deviation: deviation.saturating_add(edge.deviation),
                };
                open.insert((uncertainty, edge.clock));
            }
        }
    }
    aligned
}

/// The offset of a clock relative to its neighbour.
#[derive(Debug, Clone, Copy)]
struct Edge {
    clock: usize,
    offset: i64,
    uncertainty: u64,
    deviation: u64,
}

fn neighbours(clocks: usize, pairs: &BTreeMap<(usize, usize), ClockPair>) -> Vec<Vec<Edge>> {
    let mut all = vec![Vec::new(); clocks];
    for (&(a, b), pair) in pairs.iter().filter(|((a, b), _)| (*a).max(*b) < clocks) {
        let (offset, uncertainty, deviation) = pair.offset();
        all[a].push(Edge { clock: b, offset, uncertainty, deviation });
        all[b].push(Edge { clock: a, offset: offset.saturating_neg(), uncertainty, deviation });
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Adds a collective of some hosts: `clocks` has the true offset of each host's clock.
    fn add_collective(
        pairs: &mut BTreeMap<(usize, usize), ClockPair>,
        clocks: &[i64],
        hosts: &[usize],
        starts: &[i64],
        extra: &[i64],
    ) {
        let last = hosts.iter().map(|&host| starts[host]).max().unwrap();
        let local = |host: usize| (starts[host] - clocks[host], last + extra[host] - clocks[host]);
        for &host in &hosts[1..] {
            pairs.entry((hosts[0], host)).or_default().add(local(hosts[0]), local(host));
        }
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
            let mut pairs = BTreeMap::new();
            for (starts, extra, hosts) in &calls {
                add_collective(&mut pairs, &clocks, hosts, starts, extra);
            }
            let realtime: Vec<_> = clocks.iter().zip(&errors).map(|(c, e)| Some(c + e)).collect();
            for (host, alignment) in align(&realtime, &pairs).iter().enumerate() {
                let exact = clocks[host] - clocks[0];
                match alignment.uncertainty {
                    Some(off) => prop_assert!(alignment.offset.abs_diff(exact) <= off),
                    None => prop_assert_eq!(alignment.offset - exact, errors[host] - errors[0]),
                }
            }
        }

        #[test]
        fn random_times_never_overflow(
            times in proptest::collection::vec(any::<(i64, i64, i64, i64)>(), 0..600),
        ) {
            let mut pair = ClockPair::default();
            times.iter().for_each(|&(a, b, c, d)| pair.add((a, b), (c, d)));
            prop_assert!(pair.ends.len() < MAX_ENDS);
            align(&[Some(i64::MIN), Some(i64::MAX)], &BTreeMap::from([((0, 1), pair)]));
        }
    }

    #[test]
    fn ends_of_collectives_correct_a_real_time_clock_that_is_off() {
        // The second host's clock is 1,000 behind; its real time is wrong by 500.
        let mut pair = ClockPair::default();
        pair.add((100, 140), (-880, -850));
        assert_eq!(pair.bounds, Bounds { low: 950, high: 1020 });
        pair.add((1100, 1141), (120, 141));
        pair.add((2100, 2140), (1110, 1141));
        let aligned = align(&[Some(5000), Some(6500)], &BTreeMap::from([((0, 1), pair)]));
        assert_eq!(aligned[0], Alignment { offset: 0, uncertainty: Some(0), deviation: 0 });
        assert_eq!(aligned[1], Alignment { offset: 999, uncertainty: Some(40), deviation: 1 });
        assert_eq!(aligned[1].convert(-880), 119);
    }

    #[test]
    fn contradicting_limits_do_not_move_the_estimate() {
        assert_eq!(Bounds { low: 100, high: 60 }.choose(7), (7, 40));
        assert_eq!(Bounds { low: 10, high: 60 }.choose(7), (10, 50));
        assert_eq!(Bounds { low: i64::MAX, high: i64::MIN }.choose(0).1, u64::MAX);
    }

    #[test]
    fn clocks_without_a_path_use_real_time() {
        let aligned = align(&[Some(10), Some(25), None], &BTreeMap::new());
        assert_eq!(aligned[1], Alignment { offset: 15, uncertainty: None, deviation: 0 });
        assert_eq!(aligned[2], Alignment { offset: 0, uncertainty: None, deviation: 0 });
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
