//! The process that drives a job: its time and its signals.

use std::time::Instant;

/// The process that drives a job. Tests have virtual time.
pub trait JobHost {
    /// The time.
    fn now(&self) -> Instant;

    /// The time on the clock that stands still while this process is stopped.
    fn running_time(&self) -> Instant;

    /// Signals since the last call. Every main loop takes them.
    fn signals(&mut self) -> Vec<i32>;

    /// The first termination signal so far.
    fn termination(&mut self) -> Option<i32>;
}
