//! Execution times of kernels, by events around each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use regatta_comm::gpu_runtime::{TimingEvent, trace};
use regatta_device::ops::KernelTime;

use crate::CudaDevice;

/// The kernels since timing was started.
#[derive(Default)]
pub(crate) struct KernelTimes {
    is_enabled: AtomicBool,
    launches: Mutex<Vec<TimedLaunch>>,
}

struct TimedLaunch {
    name: String,
    start: TimingEvent,
    end: TimingEvent,
}

impl KernelTimes {
    /// Whether kernels are timed or traced one by one.
    pub fn is_enabled(&self) -> bool {
        trace::is_enabled() || self.is_enabled.load(Ordering::Relaxed)
    }

    /// Times all kernels from now on. Launches take longer.
    pub fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    /// Ends timing; the sum of the times of each kernel, all of which must have completed.
    pub fn take(&self) -> Vec<KernelTime> {
        self.is_enabled.store(false, Ordering::Relaxed);
        let mut all = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums: BTreeMap<String, KernelTime> = BTreeMap::new();
        for TimedLaunch { name, start, end } in all.drain(..) {
            let new = || KernelTime { name: name.clone(), calls: 0, seconds: 0.0 };
            let sum = sums.entry(name.clone()).or_insert_with(new);
            sum.calls += 1;
            sum.seconds += start.seconds_until(&end);
        }
        sums.into_values().collect()
    }
}

impl CudaDevice {
    /// Queues work under a name, with its time if timing is on.
    pub(crate) fn timed<T>(&self, name: impl FnOnce() -> String, queue: impl FnOnce() -> T) -> T {
        if !self.kernel_times.is_enabled() {
            return queue();
        }
        let start = self.record_timing_event();
        let result = queue();
        let end = self.record_timing_event();
        if let (Some(start), Some(end)) = (start, end) {
            if trace::is_enabled() {
                trace::record("compute", name(), start, end);
                return result;
            }
            let launch = TimedLaunch { name: name(), start, end };
            let mut all = self.kernel_times.launches.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(launch);
        }
        result
    }

    /// Records a trace of all kernels, and of the collectives of this process, from now on.
    pub fn start_trace(&self) {
        self.make_current();
        self.record_timing_event().into_iter().for_each(trace::start);
    }

    pub(crate) fn record_timing_event(&self) -> Option<TimingEvent> {
        // SAFETY: the stream is a stream of this device, which is current.
        unsafe { TimingEvent::record(&self.runtime, self.stream()) }
    }
}
