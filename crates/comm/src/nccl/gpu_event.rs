//! Events of the GPU runtime.

use std::sync::{Arc, OnceLock};

use super::device::GpuDevice;
use crate::Result;
use crate::event::Completion;
use crate::gpu_runtime::{NOT_READY, RawEvent, Stream};

/// The completion of the work that was on a stream when it was recorded.
pub struct GpuEvent {
    raw: RawEvent,
    device: Arc<GpuDevice>,
}

// SAFETY: the runtime's events may be used from any thread.
unsafe impl Send for GpuEvent {}
// SAFETY: the runtime is thread-safe.
unsafe impl Sync for GpuEvent {}

impl GpuEvent {
    /// Records an event on a stream of the current device.
    ///
    /// # Safety
    /// `stream` must be a valid stream of the device.
    pub unsafe fn record(device: &Arc<GpuDevice>, stream: Stream) -> Result<Self> {
        let event = Self { raw: device.take_event()?, device: device.clone() };
        // SAFETY: the event and the stream are valid.
        let code = unsafe { (device.runtime.event_record)(event.raw, stream) };
        device.check("recording an event", code).map(|()| event)
    }
}

impl Drop for GpuEvent {
    fn drop(&mut self) {
        self.device.return_event(self.raw);
    }
}

impl Completion for GpuEvent {
    fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event is valid.
        match unsafe { (self.device.runtime.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.device.check("querying an event", code).map(|()| true),
        }
    }

    unsafe fn wait_on_stream(&self, stream: Stream) -> Result {
        // SAFETY: the event is valid, and the stream as required of the caller.
        let code = unsafe { (self.device.runtime.stream_wait_event)(stream, self.raw, 0) };
        self.device.check("waiting for an event on a stream", code)
    }
}

/// The completion of calls of a communicator. The engine sets the result when it finds them
/// completed, and sets an error before it aborts them, which completes their event, too.
pub struct CallEvent {
    pub event: Arc<GpuEvent>,
    pub result: Arc<OnceLock<Result>>,
}

impl Completion for CallEvent {
    fn is_complete(&self) -> Result<bool> {
        let completed = self.result.get().is_some() || self.event.is_complete()?;
        match self.result.get() {
            Some(result) => result.clone().map(|()| true),
            None => Ok(completed),
        }
    }

    unsafe fn wait_on_stream(&self, stream: Stream) -> Result {
        if let Some(Err(error)) = self.result.get() {
            return Err(error.clone());
        }
        // SAFETY: as required of the caller.
        unsafe { self.event.wait_on_stream(stream) }
    }
}
