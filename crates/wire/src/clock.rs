//! The clock for timeouts of peers. It stands still while this process is stopped: by SIGSTOP or
//! SIGTSTP, `scontrol suspend` or the suspension of a virtual machine. All processes of a job are
//! usually stopped together, so after a resume the silence of a peer says nothing about it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most the clock advances between two readings; a longer interval means that this process was
/// stopped. A process that relies on the clock reads it several times in this interval.
pub const MAX_STEP: Duration = Duration::from_millis(250);

/// Readings within this time of the last recorded one are not recorded, to spare the cache line.
const RESOLUTION: u64 = 1_000_000;

static CLOCK: RunClock = RunClock::new();
static START: OnceLock<Instant> = OnceLock::new();

/// The time on this process's clock. Compare it only with other readings of this clock.
pub fn now() -> Instant {
    let start = *START.get_or_init(Instant::now);
    start + Duration::from_nanos(CLOCK.read(start.elapsed().as_nanos() as u64))
}

/// The time since an earlier reading of this process's clock.
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// The time in which a process ran, as a function of the monotonic time. Both are in nanoseconds since
/// the first reading.
#[derive(Debug)]
pub struct RunClock {
    /// The monotonic time of the last recorded reading.
    last: AtomicU64,
    /// The time in which the process was stopped.
    stopped: AtomicU64,
    /// Held to add to `stopped`.
    adding: Mutex<()>,
}

impl RunClock {
    /// A clock that starts at zero.
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0), stopped: AtomicU64::new(0), adding: Mutex::new(()) }
    }

    /// Reads the clock at the monotonic time `at`.
    pub fn read(&self, at: u64) -> u64 {
        let step = at.saturating_sub(self.last.load(Ordering::Acquire));
        if step > MAX_STEP.as_nanos() as u64 {
            self.skip_stop(at);
        } else if step > RESOLUTION {
            self.last.fetch_max(at, Ordering::AcqRel);
        }
        at.saturating_sub(self.stopped.load(Ordering::Acquire))
    }

    /// Excludes the time since the last reading beyond [`MAX_STEP`], unless another thread just did.
    fn skip_stop(&self, at: u64) {
        let _guard = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let step = at.saturating_sub(self.last.load(Ordering::Acquire));
        let stopped = step.saturating_sub(MAX_STEP.as_nanos() as u64);
        self.stopped.fetch_add(stopped, Ordering::AcqRel);
        // After `stopped`: a thread that sees this reading must not count the stop as time.
        self.last.fetch_max(at, Ordering::AcqRel);
    }
}

impl Default for RunClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const STEP: u64 = MAX_STEP.as_nanos() as u64;

    #[test]
    fn clock_stands_still_while_the_process_is_stopped() {
        let clock = RunClock::new();
        assert_eq!(clock.read(100 * MS), 100 * MS);
        assert_eq!(clock.read(45_100 * MS), 100 * MS + STEP);
        assert_eq!(clock.read(45_150 * MS), 150 * MS + STEP);
        assert_eq!(clock.read(100_150 * MS), 150 * MS + 2 * STEP);
    }

    #[test]
    fn threads_that_resume_together_exclude_a_stop_once() {
        let clock = RunClock::new();
        clock.read(100 * MS);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(clock.read(60_000 * MS), 100 * MS + STEP));
            }
        });
        assert_eq!(clock.read(60_010 * MS), 110 * MS + STEP);
    }

    proptest! {
        #[test]
        fn clock_is_monotonic_and_advances_with_every_reading(
            steps in prop::collection::vec(0..2 * STEP, 1..50),
        ) {
            let (clock, mut at, mut running) = (RunClock::new(), 0, 0);
            for step in steps {
                at += step;
                let now = clock.read(at);
                // An unrecorded reading may count towards the next step.
                prop_assert!(now >= running && now + RESOLUTION >= running + step.min(STEP));
                prop_assert!(now <= running + step);
                running = now;
            }
        }
    }
}
