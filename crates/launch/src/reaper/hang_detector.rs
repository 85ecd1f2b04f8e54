//! Detection of a hung worker by its heartbeats. No I/O; the caller passes the time.

use std::time::{Duration, Instant};

/// A message from the worker's main loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Heartbeat {
    /// It blocks for any time, until the next heartbeat.
    Suspended,
    /// It runs.
    Running,
}

impl Heartbeat {
    pub(super) fn of(byte: u8) -> Self {
        if byte == Self::Suspended as u8 { Self::Suspended } else { Self::Running }
    }
}

/// Decides when a worker is hung.
#[derive(Debug)]
pub(super) struct HangDetector {
    timeout: Duration,
    /// The last heartbeat; `None` before the first and while they are suspended.
    last: Option<Instant>,
    last_call: Option<Instant>,
}

/// A longer interval between two calls means that the reaper itself was stopped.
const MAX_INTERVAL: Duration = Duration::from_millis(500);

impl HangDetector {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, last: None, last_call: None }
    }

    /// Whether the worker is hung, given the last heartbeat since the previous call. If this process
    /// was stopped meanwhile, so was usually the worker: the timeout starts again.
    pub(super) fn is_hung(&mut self, heartbeat: Option<Heartbeat>, now: Instant) -> bool {
        let previous = self.last_call.replace(now);
        if previous.is_some_and(|at| now.saturating_duration_since(at) > MAX_INTERVAL) {
            self.last = self.last.map(|_| now);
        }
        match heartbeat {
            Some(Heartbeat::Running) => self.last = Some(now),
            Some(Heartbeat::Suspended) => self.last = None,
            None => {}
        }
        self.last.is_some_and(|last| now.saturating_duration_since(last) >= self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks until `to` in intervals of 100 ms; returns when the worker is first found hung.
    fn ticks(detector: &mut HangDetector, start: Instant, from: u64, to: u64) -> Option<u64> {
        let at = |tenths| start + Duration::from_millis(tenths * 100);
        (from..to).find(|&tenths| detector.is_hung(None, at(tenths)))
    }

    #[test]
    fn worker_is_hung_after_the_timeout_without_a_heartbeat() {
        let (mut detector, start) = (HangDetector::new(Duration::from_secs(30)), Instant::now());
        assert_eq!(ticks(&mut detector, start, 0, 400), None, "before the first heartbeat");
        detector.is_hung(Some(Heartbeat::Running), start + Duration::from_secs(40));
        assert_eq!(ticks(&mut detector, start, 401, 690), None);
        detector.is_hung(Some(Heartbeat::Running), start + Duration::from_secs(69));
        assert_eq!(ticks(&mut detector, start, 691, 2000), Some(990));
    }

    #[test]
    fn worker_with_suspended_heartbeats_is_not_hung() {
        let (mut detector, start) = (HangDetector::new(Duration::from_secs(30)), Instant::now());
        detector.is_hung(Some(Heartbeat::Running), start);
        detector.is_hung(Some(Heartbeat::Suspended), start);
        assert_eq!(ticks(&mut detector, start, 1, 1000), None);
        detector.is_hung(Some(Heartbeat::Running), start + Duration::from_secs(100));
        assert_eq!(ticks(&mut detector, start, 1001, 2000), Some(1300));
    }

    #[test]
    fn timeout_starts_again_after_the_reaper_was_stopped() {
        let (mut detector, start) = (HangDetector::new(Duration::from_secs(30)), Instant::now());
        detector.is_hung(Some(Heartbeat::Running), start);
        assert_eq!(ticks(&mut detector, start, 1, 290), None);
        assert_eq!(ticks(&mut detector, start, 1000, 2000), Some(1300));
    }
}
