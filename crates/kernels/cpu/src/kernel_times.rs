//! Wall-clock times of operations, by name. GEMMs are named by their shape.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use regatta_device::ops::KernelTime;

/// The operations since timing was started.
#[derive(Debug, Default)]
pub struct KernelTimes {
    is_enabled: AtomicBool,
    sums: Mutex<BTreeMap<String, (u64, Duration)>>,
}

thread_local! {
    /// Time of the operations within the one that this thread is timing.
    static NESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

impl KernelTimes {
    /// Times all operations from now on.
    pub fn start(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    /// Ends timing and returns the sums.
    pub fn take(&self) -> Vec<KernelTime> {
        self.is_enabled.store(false, Ordering::Relaxed);
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let times = std::mem::take(&mut *sums)
            .into_iter()
            .map(|(name, (calls, time))| KernelTime { name, calls, seconds: time.as_secs_f64() });
        times.collect()
    }

    /// Times an operation until the guard is dropped, without the time of operations timed within it.
    pub fn timer(&self, name: impl FnOnce() -> String) -> Option<KernelTimer<'_>> {
        let is_enabled = self.is_enabled.load(Ordering::Relaxed);
        is_enabled.then(|| KernelTimer {
            times: self,
            name: name(),
            outer: NESTED.replace(Duration::ZERO),
            start: Instant::now(),
        })
    }
}

/// Adds the time since its creation when dropped.
pub struct KernelTimer<'a> {
    times: &'a KernelTimes,
    name: String,
    /// Nested time of the enclosing operation.
    outer: Duration,
    start: Instant,
}

impl Drop for KernelTimer<'_> {
    fn drop(&mut self) {
        let elapsed = self.start.elapsed();
        let nested = NESTED.replace(self.outer + elapsed);
        let mut sums = self.times.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (calls, time) = sums.entry(std::mem::take(&mut self.name)).or_default();
        *calls += 1;
        *time += elapsed.saturating_sub(nested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_by_name_without_nested_operations() {
        let times = KernelTimes::default();
        let sleep = |ms| std::thread::sleep(Duration::from_millis(ms));
        let inner = || {
            let _timer = times.timer(|| "inner".to_owned());
            sleep(30);
        };
        assert!(times.timer(|| "before".to_owned()).is_none());
        times.start();
        let began = Instant::now();
        let outer = times.timer(|| "outer".to_owned());
        inner();
        inner();
        drop(outer);
        let elapsed = began.elapsed().as_secs_f64();
        let found = times.take();
        let [inner_time, outer_time] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*inner_time.name, inner_time.calls), ("inner", 2));
        assert_eq!((&*outer_time.name, outer_time.calls), ("outer", 1));
        assert!(inner_time.seconds >= 0.06, "{inner_time:?}");
        // Counted twice, the sleeps would exceed the elapsed time.
        assert!(inner_time.seconds + outer_time.seconds <= elapsed, "{found:?} in {elapsed} s");
        inner();
        assert_eq!(times.take(), []);
    }
}
