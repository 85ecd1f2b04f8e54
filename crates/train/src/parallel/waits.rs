//! How long passes waited for other ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts how long passes waited for other ranks.
#[derive(Debug, Clone, Default)]
pub struct Waits(Arc<AtomicU64>);

impl Waits {
    /// Does something that is waiting.
    pub fn count<T>(&self, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = wait();
        let nanoseconds = began.elapsed().as_nanos().try_into().unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
        done
    }

    /// What was counted since this was last asked.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}
