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
}

impl HangDetector {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, last: None }
    }

    /// Whether the worker is hung, given the last heartbeat since the previous call. `now` is of a
    /// clock that stands still while the reaper is stopped: the worker is then usually stopped too.
    pub(super) fn is_hung(&mut self, heartbeat: Option<Heartbeat>, now: Instant) -> bool {
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

    #[test]
    fn worker_is_hung_after_the_timeout_without_a_heartbeat() {
        let (mut detector, start) = (HangDetector::new(Duration::from_secs(30)), Instant::now());
        let mut is_hung =
            |heartbeat, seconds| detector.is_hung(heartbeat, start + Duration::from_secs(seconds));
        assert!(!is_hung(None, 100), "before the first heartbeat");
        assert!(!is_hung(Some(Heartbeat::Running), 100) && !is_hung(None, 129));
        assert!(!is_hung(Some(Heartbeat::Running), 129) && !is_hung(None, 158));
        assert!(is_hung(None, 159));
    }

    #[test]
    fn worker_with_suspended_heartbeats_is_not_hung() {
        let (mut detector, start) = (HangDetector::new(Duration::from_secs(30)), Instant::now());
        let mut is_hung =
            |heartbeat, seconds| detector.is_hung(heartbeat, start + Duration::from_secs(seconds));
        is_hung(Some(Heartbeat::Running), 0);
        assert!(!is_hung(Some(Heartbeat::Suspended), 1) && !is_hung(None, 1000));
        assert!(!is_hung(Some(Heartbeat::Running), 1000) && is_hung(None, 1030));
    }
}
