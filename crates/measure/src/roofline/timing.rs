//! Chooses repetitions and computes rates from their times.

use std::time::Duration;

use regatta_model::{RateUnit, RooflineKind, RooflineRow};

/// Minimum repetitions of long calls: a median of fewer is meaningless.
const MIN_REPETITIONS: u32 = 3;

/// Repetition limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimingOptions {
    /// Maximum repetitions of a case.
    pub max_repetitions: u32,
    /// Target time of a repetition: enough calls that clock and thread start-up are negligible.
    pub repetition_time: Duration,
    /// Target time of all repetitions of a case; at least three are made.
    pub case_time: Duration,
}

impl Default for TimingOptions {
    fn default() -> Self {
        let millis = Duration::from_millis;
        Self { max_repetitions: 20, repetition_time: millis(20), case_time: millis(500) }
    }
}

impl TimingOptions {
    /// The fewest calls, for tests.
    #[cfg(test)]
    pub(super) fn minimal() -> Self {
        let (repetition_time, case_time) = (Duration::ZERO, Duration::ZERO);
        Self { max_repetitions: 2, repetition_time, case_time }
    }

    /// Calls to try next, given the time of `calls`; `None` if that is long enough.
    fn next_calls(&self, calls: u64, elapsed: Duration) -> Option<u64> {
        // Slightly short repetitions are accepted.
        if elapsed >= self.repetition_time / 2 || calls >= 1 << 40 {
            return None;
        }
        let factor = self.repetition_time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        // The first calls are slow and overestimate the time.
        Some((calls as f64 * factor.clamp(2.0, 50.0)).ceil() as u64)
    }

    /// Number of repetitions, given the time of one.
    fn repetitions(&self, elapsed: Duration) -> u32 {
        let fitting = self.case_time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        let max = self.max_repetitions.max(1);
        (fitting as u32).clamp(MIN_REPETITIONS.min(max), max)
    }
}

/// Times of the repetitions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Samples {
    /// Calls per repetition.
    pub calls: u64,
    /// Sorted, non-empty.
    times: Vec<Duration>,
}

/// Times calls: `round` runs the given number and returns their time.
pub(super) fn time<E>(
    timing: &TimingOptions,
    mut round: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Samples, E> {
    // Warm-up: touches memory and loads code.
    round(1)?;
    let mut calls = 1;
    let mut elapsed = round(calls)?;
    while let Some(more) = timing.next_calls(calls, elapsed) {
        calls = more;
        elapsed = round(calls)?;
    }
    let times = (0..timing.repetitions(elapsed)).map(|_| round(calls)).collect::<Result<_, E>>()?;
    Ok(Samples::new(calls, times))
}

impl Samples {
    pub(super) fn new(calls: u64, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { calls, times }
    }

    /// The row of calls that each process `amount` units.
    pub fn row(
        &self,
        kind: RooflineKind,
        case: String,
        amount: f64,
        unit: RateUnit,
    ) -> RooflineRow {
        let seconds = |at: usize| {
            let time = self.times.get(at).map_or(0.0, Duration::as_secs_f64);
            // The clock has a resolution of nanoseconds.
            time.max(1e-9) / self.calls as f64
        };
        let median = seconds(self.times.len() / 2);
        RooflineRow {
            kind,
            case,
            device: "cpu".to_owned(),
            unit,
            best: amount / seconds(0),
            median: amount / median,
            time_us: median * 1e6,
            repetitions: self.times.len() as u32,
            ..RooflineRow::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a call of `one_ns` nanoseconds.
    fn timed(one_ns: u64, overhead_ns: u64) -> Samples {
        let timing = TimingOptions::default();
        let round = |calls: u64| {
            Ok::<_, ()>(Duration::from_nanos(overhead_ns + calls.saturating_mul(one_ns)))
        };
        time(&timing, round).unwrap()
    }

    #[test]
    fn short_calls_are_batched_and_long_calls_repeated_three_times() {
        let short = timed(100, 50_000);
        assert!(short.calls >= 100_000, "{}", short.calls);
        assert_eq!(short.times.len(), 20);
        let long = timed(3_000_000_000, 0);
        assert_eq!((long.calls, long.times.len()), (1, 3));
    }

    #[test]
    fn rates_are_those_of_the_minimum_and_median_times() {
        let millis = Duration::from_millis;
        let found = Samples::new(2, vec![millis(40), millis(20), millis(30)]);
        let row = found.row(RooflineKind::Copy, "x".into(), 1.0, RateUnit::GigabytesPerSecond);
        assert!((row.best - 100.0).abs() < 1e-9 && (row.median - 1e3 / 15.0).abs() < 1e-9);
        assert!((row.time_us - 15_000.0).abs() < 1e-6);
        assert_eq!(row.repetitions, 3);
    }

    proptest! {
        #[test]
        fn timing_terminates_for_any_call_duration(
            one_ns in 0u64..10_000_000_000, overhead in 0u64..1_000_000,
        ) {
            let found = timed(one_ns, overhead);
            prop_assert!(found.calls >= 1);
            let row = found.row(RooflineKind::Gemm, String::new(), 1.0, RateUnit::Gflops);
            prop_assert!(row.best.is_finite() && row.median.is_finite() && row.best >= row.median);
        }
    }
}
