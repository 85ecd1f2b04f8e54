//! The clock of step times. It stands still while this process is stopped: by Ctrl-Z, SIGSTOP or
//! `scontrol suspend`.
//!
//! A thread reads the clock ten times per second; an interval of a second between two readings means
//! that the process was stopped. The clock of timeouts (`regatta_wire::clock`) stops after a quarter of a
//! second: it must not count time in which the process did not run, but a measurement must count the
//! time in which a busy machine ran others.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the readings.
const TICK: Duration = Duration::from_millis(100);
/// Interval between two readings from which the process counts as stopped.
const STOPPED: Duration = Duration::from_secs(1);

/// The time on this process's clock. Compare it only with other readings of this clock.
pub fn now() -> Instant {
    read().0
}

/// The time since an earlier reading of this process's clock.
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// The time in which this process was stopped, since the first reading.
pub fn stopped() -> Duration {
    read().1
}

/// Reads the clock of the process: its time, and the time in which the process was stopped.
fn read() -> (Instant, Duration) {
    static CLOCK: OnceLock<(Instant, Mutex<RunClock>)> = OnceLock::new();
    let (start, clock) = CLOCK.get_or_init(|| {
        let tick = || loop {
            std::thread::sleep(TICK);
            now();
        };
        let thread = std::thread::Builder::new().name("run-clock".to_owned()).spawn(tick);
        // Without the thread, every long interval would count as a stop.
        let limit = if thread.is_ok() { STOPPED } else { Duration::MAX };
        (Instant::now(), Mutex::new(RunClock::new(limit)))
    });
    let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
    (*start + clock.read(start.elapsed()), clock.stopped)
}

/// The time in which a process ran, as a function of the monotonic time.
#[derive(Debug)]
struct RunClock {
    /// Interval between two readings from which the process counts as stopped.
    limit: Duration,
    /// The monotonic time of the last reading.
    last: Duration,
    stopped: Duration,
}

impl RunClock {
    const fn new(limit: Duration) -> Self {
        Self { limit, last: Duration::ZERO, stopped: Duration::ZERO }
    }

    /// Reads the clock at the monotonic time `at`.
    fn read(&mut self, at: Duration) -> Duration {
        let interval = at.saturating_sub(self.last);
        if interval >= self.limit {
            self.stopped += interval;
        }
        self.last = self.last.max(at);
        self.last - self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_excludes_stops_but_not_late_readings() {
        let mut clock = RunClock::new(STOPPED);
        let mut read = |ms| clock.read(Duration::from_millis(ms)).as_millis();
        assert_eq!([read(100), read(200), read(1100)], [100, 200, 1100]);
        assert_eq!(read(23_100), 1100, "stopped for 22 s");
        assert_eq!(read(23_200), 1200);
        assert_eq!(clock.stopped, Duration::from_secs(22));
    }
}
