//! A clock that excludes pauses of the machine, which are no delay of the communicators. They exclude
//! them from their timeouts, too, by a clock of their own, which is under test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);

/// The process was paused for the rest of a longer interval between ticks.
const LONGEST_TICK: Duration = Duration::from_millis(50);

static RUNNING_US: AtomicU64 = AtomicU64::new(0);

/// Starts the clock, which takes a thread.
pub fn start() {
    std::thread::spawn(|| {
        let mut last = Instant::now();
        loop {
            std::thread::sleep(TICK);
            let now = Instant::now();
            let elapsed = now.duration_since(last).min(LONGEST_TICK);
            RUNNING_US.fetch_add(elapsed.as_micros() as u64, Ordering::Relaxed);
            last = now;
        }
    });
}

/// The time since the start without pauses.
pub fn now() -> Duration {
    Duration::from_micros(RUNNING_US.load(Ordering::Relaxed))
}
