//! Events with time stamps.

use std::ptr::null_mut;
use std::sync::Arc;

use super::{RawEvent, Runtime, SUCCESS, Stream};

/// A recorded event with a time stamp.
pub struct TimingEvent {
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
    /// Records an event on a stream of the current device.
    ///
    /// # Safety
    /// `stream` must be a valid stream of the current device.
    pub unsafe fn record(runtime: &Arc<Runtime>, stream: Stream) -> Option<Self> {
        let mut raw = null_mut();
        // SAFETY: the function writes one pointer.
        if unsafe { (runtime.event_create_with_flags)(&mut raw, 0) } != SUCCESS {
            return None;
        }
        let event = Self { raw, runtime: runtime.clone() };
        // SAFETY: the event is valid, and the stream as required of the caller.
        let code = unsafe { (runtime.event_record)(raw, stream) };
        (code == SUCCESS).then_some(event)
    }

    /// Seconds until another event; both must have completed.
    pub fn seconds_until(&self, end: &Self) -> f64 {
        let mut milliseconds = 0.0;
        // SAFETY: both events are valid.
        unsafe { (self.runtime.event_elapsed_time)(&mut milliseconds, self.raw, end.raw) };
        f64::from(milliseconds) / 1e3
    }
}
