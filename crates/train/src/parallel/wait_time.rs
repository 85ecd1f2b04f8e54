//! Time that passes spend blocked on communication.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::run_clock;

/// Accumulated time spent blocked on other ranks.
#[derive(Debug, Clone, Default)]
pub struct WaitTime(Arc<AtomicU64>);

impl WaitTime {
    /// Runs a blocking operation and adds its duration.
    pub fn measure<T>(&self, wait: impl FnOnce() -> T) -> T {
        let start = run_clock::now();
        let result = wait();
        let nanoseconds = run_clock::elapsed(start).as_nanos().try_into().unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }

    /// Returns the accumulated time and resets it.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}
