//! How often to do something, and what its times say.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use regatta_model::{CeilingKind, CeilingRow, RateUnit};

/// So many repetitions are made even if they take long: a median of fewer says little.
const FEWEST: u32 = 3;

/// How much to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Repetitions of a case, at most.
    pub repetitions: u32,
    /// A repetition does as many calls as it takes to last so long, that neither the clock nor the
    /// start of threads counts.
    pub repetition: Duration,
    /// The repetitions of a case take so long together, or there are three.
    pub case: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        let millis = Duration::from_millis;
        Self { repetitions: 20, repetition: millis(20), case: millis(500) }
    }
}

impl Effort {
    /// How many calls to try next if so many took so long; `None`: that was long enough.
    fn more(&self, calls: u64, took: Duration) -> Option<u64> {
        // A repetition a little shorter than wanted is not worth another try.
        if took >= self.repetition / 2 || calls >= 1 << 40 {
            return None;
        }
        let factor = self.repetition.as_secs_f64() / took.as_secs_f64().max(1e-9);
        // The first calls are slow, and say little of how many there must be.
        Some((calls as f64 * factor.clamp(2.0, 50.0)).ceil() as u64)
    }

    /// How many repetitions, if one takes so long.
    fn repetitions(&self, took: Duration) -> u32 {
        let fit = self.case.as_secs_f64() / took.as_secs_f64().max(1e-9);
        let most = self.repetitions.max(1);
        (fit as u32).clamp(FEWEST.min(most), most)
    }
}

/// The times of some repetitions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    /// How many calls each had.
    pub calls: u64,
    /// How long each took, the shortest first; at least one.
    times: Vec<Duration>,
}

/// Times calls: `round` does so many, and says how long they took. `None`: it was stopped before
/// there was anything to tell.
pub(super) fn time<E>(
    effort: &Effort,
    stop: &AtomicBool,
    mut round: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Option<Timed>, E> {
    // Memory is touched and code is loaded.
    round(1)?;
    let mut calls = 1;
    let mut took = round(calls)?;
    while let Some(more) = effort.more(calls, took).filter(|_| !stop.load(Ordering::Relaxed)) {
        calls = more;
        took = round(calls)?;
    }
    let mut times = Vec::new();
    for _ in 0..effort.repetitions(took) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        times.push(round(calls)?);
    }
    Ok(Timed::new(calls, times))
}

impl Timed {
    /// `None` if there are no times.
    pub(super) fn new(calls: u64, mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        (!times.is_empty() && calls > 0).then_some(Self { calls, times })
    }

    /// The row of calls that each did `amount` of what the unit counts.
    pub(super) fn row(
        &self,
        kind: CeilingKind,
        what: String,
        amount: f64,
        unit: RateUnit,
    ) -> CeilingRow {
        let seconds = |at: usize| {
            let time = self.times.get(at).map_or(0.0, Duration::as_secs_f64);
            // A clock that stood still is one of nanoseconds.
            time.max(1e-9) / self.calls as f64
        };
        let median = seconds(self.times.len() / 2);
        CeilingRow {
            kind,
            what,
            device: "cpu".to_owned(),
            device_number: None,
            unit,
            best: amount / seconds(0),
            median: amount / median,
            time_us: median * 1e6,
            repetitions: self.times.len() as u32,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    /// A call that takes so many nanoseconds, on a clock of our own.
    fn timed(one_ns: u64, overhead_ns: u64) -> Timed {
        let effort = Effort::default();
        let round = |calls: u64| {
            Ok::<_, ()>(Duration::from_nanos(overhead_ns + calls.saturating_mul(one_ns)))
        };
        time(&effort, &never(), round).unwrap().unwrap()
    }

    #[test]
    fn short_calls_are_done_often_and_long_ones_thrice() {
        let short = timed(100, 50_000);
        assert!(short.calls >= 100_000, "{}", short.calls);
        assert_eq!(short.times.len(), 20);
        let long = timed(3_000_000_000, 0);
        assert_eq!((long.calls, long.times.len()), (1, 3));
    }

    #[test]
    fn what_is_stopped_tells_what_it_has() {
        let stop = never();
        let mut rounds = 0;
        let round = |_| {
            rounds += 1;
            stop.store(rounds == 4, Ordering::Relaxed);
            Ok::<_, ()>(Duration::from_millis(20))
        };
        let found = time(&Effort::default(), &stop, round).unwrap().unwrap();
        assert_eq!(found.times.len(), 2, "two rounds warm up, two are timed");
        let stopped = AtomicBool::new(true);
        let found = time(&Effort::default(), &stopped, |_| Ok::<_, ()>(Duration::from_millis(20)));
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn rates_are_of_the_shortest_and_the_median_time() {
        let millis = Duration::from_millis;
        let found = Timed::new(2, vec![millis(40), millis(20), millis(30)]).unwrap();
        let row = found.row(CeilingKind::Copy, "x".into(), 1.0, RateUnit::GigabytesPerSecond);
        assert!((row.best - 100.0).abs() < 1e-9 && (row.median - 1e3 / 15.0).abs() < 1e-9);
        assert!((row.time_us - 15_000.0).abs() < 1e-6);
        assert_eq!(row.repetitions, 3);
    }

    proptest! {
        #[test]
        fn any_call_is_timed_in_the_end(
            one_ns in 0u64..10_000_000_000, overhead in 0u64..1_000_000,
        ) {
            let found = timed(one_ns, overhead);
            prop_assert!(found.calls >= 1);
            let row = found.row(CeilingKind::Gemm, String::new(), 1.0, RateUnit::Gflops);
            prop_assert!(row.best.is_finite() && row.median.is_finite() && row.best >= row.median);
        }
    }
}
