//! Detection of stalled calls. No I/O; time is an argument.

use std::time::{Duration, Instant};

/// The first query to rank 0, and the longest interval between queries (exponential backoff).
const FIRST_QUERY: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// A call that moves fewer bytes within the timeout counts as stalled.
const MIN_PROGRESS_BYTES: u64 = 64 << 10;

/// What to do about the current call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallAction {
    /// Nothing until this time.
    Wait(Instant),
    /// Ask rank 0 whether an awaited rank has departed.
    Query,
    /// The call timed out: ask rank 0 for the cause.
    Timeout,
}

/// Measures the time since the last progress.
#[derive(Debug)]
pub struct StallDetector {
    timeout: Duration,
    /// The time of the last progress.
    pub since: Instant,
    bytes_moved: u64,
    next_query: Duration,
    timed_out: bool,
}

impl StallDetector {
    /// Starts measuring.
    pub fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, since: now, bytes_moved: 0, next_query: FIRST_QUERY, timed_out: false }
    }

    /// Restarts at a completed or newly started operation.
    pub fn reset(&mut self, bytes_moved: u64, now: Instant) {
        *self = Self { bytes_moved, ..Self::new(self.timeout, now) };
    }

    /// Decides by the time and the bytes moved so far.
    pub fn check(&mut self, bytes_moved: u64, now: Instant) -> StallAction {
        if bytes_moved >= self.bytes_moved + MIN_PROGRESS_BYTES && !self.timed_out {
            self.reset(bytes_moved, now);
        }
        let waited = now.saturating_duration_since(self.since);
        if waited >= self.timeout && !self.timed_out {
            self.timed_out = true;
            return StallAction::Timeout;
        }
        if waited >= self.next_query && !self.timed_out {
            self.next_query = waited + waited.min(MAX_INTERVAL);
            return StallAction::Query;
        }
        let next = match self.timed_out {
            true => waited + MAX_INTERVAL,
            false => self.next_query.min(self.timeout),
        };
        StallAction::Wait(self.since + next)
    }

    /// Seconds since the last progress.
    pub fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_back_off_exponentially_and_the_timeout_fires_once() {
        let start = Instant::now();
        let mut detector = StallDetector::new(Duration::from_secs(1), start);
        let mut actions = Vec::new();
        let mut now = start;
        while now < start + Duration::from_secs(3) {
            match detector.check(0, now) {
                StallAction::Wait(then) => now = then.max(now + Duration::from_millis(1)),
                action => actions.push((action, (now - start).as_millis())),
            }
        }
        let queries = [50, 100, 200, 400, 800].map(|at| (StallAction::Query, at));
        assert_eq!(actions, [&queries[..], &[(StallAction::Timeout, 1000)]].concat());
    }

    #[test]
    fn calls_below_the_minimum_progress_time_out() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        for (step, times_out) in [(MIN_PROGRESS_BYTES / 20, true), (MIN_PROGRESS_BYTES / 5, false)]
        {
            let mut detector = StallDetector::new(second, start);
            let check = |i| detector.check(step * i, start + second / 10 * i as u32);
            let actions: Vec<_> = (1..100).map(check).collect();
            assert_eq!(actions.contains(&StallAction::Timeout), times_out, "{step}");
        }
    }
}
