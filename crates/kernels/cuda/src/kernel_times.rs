//! Execution times of kernels, by events around each.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use regatta_comm::gpu_runtime::{RawEvent, Runtime, SUCCESS};
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

/// A recorded event with a time stamp.
pub(crate) struct TimingEvent {
    raw: RawEvent,
    runtime: Arc<Runtime>,
}

// SAFETY: events may be used by any thread.
unsafe impl Send for TimingEvent {}

impl Drop for TimingEvent {
    fn drop(&mut self) {
        // SAFETY: the event is valid and not used afterwards.
        unsafe { (self.runtime.event_destroy)(self.raw) };
    }
}

impl TimingEvent {
    /// Seconds until a later event; both must have completed.
    pub fn seconds_until(&self, end: &Self) -> f64 {
        let mut milliseconds = 0.0;
        // SAFETY: both events are valid.
        unsafe { (self.runtime.event_elapsed_time)(&mut milliseconds, self.raw, end.raw) };
        f64::from(milliseconds) / 1e3
    }
}

impl KernelTimes {
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
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
            let launch = TimedLaunch { name: name(), start, end };
            let mut all = self.kernel_times.launches.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(launch);
        }
        result
    }

    /// Times all kernels from now on. Launches take longer.
    pub(crate) fn enable_kernel_times(&self) {
        self.kernel_times.is_enabled.store(true, Ordering::Relaxed);
    }

    /// Ends timing; the sum of the times of each kernel.
    pub(crate) fn collect_kernel_times(&self) -> Vec<KernelTime> {
        self.kernel_times.is_enabled.store(false, Ordering::Relaxed);
        self.synchronize_stream();
        let mut all = self.kernel_times.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums: BTreeMap<String, KernelTime> = BTreeMap::new();
        for TimedLaunch { name, start, end } in all.drain(..) {
            let new = || KernelTime { name: name.clone(), calls: 0, seconds: 0.0 };
            let sum = sums.entry(name.clone()).or_insert_with(new);
            sum.calls += 1;
            sum.seconds += start.seconds_until(&end);
        }
        sums.into_values().collect()
    }

    pub(crate) fn record_timing_event(&self) -> Option<TimingEvent> {
        let mut raw = null_mut();
        // SAFETY: the function writes one pointer.
        if unsafe { (self.runtime.event_create_with_flags)(&mut raw, 0) } != SUCCESS {
            return None;
        }
        let event = TimingEvent { raw, runtime: self.runtime.clone() };
        // SAFETY: the event and the stream are valid.
        let code = unsafe { (self.runtime.event_record)(raw, self.stream()) };
        (code == SUCCESS).then_some(event)
    }
}
