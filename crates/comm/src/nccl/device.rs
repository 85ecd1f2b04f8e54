//! A device, its stream and its memory.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use crate::gpu_runtime::{
    CAPTURE_MODE_RELAXED, EVENT_DISABLE_TIMING, MEMCPY_DEFAULT, NOT_READY, RawEvent, Runtime,
    STREAM_NON_BLOCKING, SUCCESS, Stream, StreamOrderedAllocator,
};
use crate::{CommError, Result};

/// Converts an error code of the runtime.
pub fn check(runtime: &Runtime, what: &str, code: c_int) -> Result {
    if code == SUCCESS { Ok(()) } else { Err(CommError::system(what, runtime.error_string(code))) }
}

/// A device and a stream on it.
pub struct GpuDevice {
    pub runtime: Arc<Runtime>,
    pub stream: Stream,
    allocator: StreamOrderedAllocator,
    index: c_int,
    /// Events that can be recorded again.
    events: Mutex<Vec<RawEvent>>,
}

// SAFETY: the runtime may be called from any thread.
unsafe impl Send for GpuDevice {}
// SAFETY: the runtime is thread-safe.
unsafe impl Sync for GpuDevice {}

impl GpuDevice {
    /// Opens a device by its runtime index.
    pub fn open(runtime: Arc<Runtime>, index: u32) -> Result<Self> {
        let allocator = runtime.stream_ordered.ok_or_else(|| {
            let what = "the GPU runtime has no stream-ordered allocator";
            CommError::bootstrap(what, "use CUDA 11.2, ROCm 5.2 or newer")
        })?;
        let (stream, index) = (null_mut(), index as c_int);
        let mut device = Self { runtime, stream, allocator, index, events: Mutex::default() };
        let _guard = device.make_current()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: the function writes two integers.
        let code =
            unsafe { (device.runtime.device_get_stream_priority_range)(&mut lowest, &mut highest) };
        device.check("querying the stream priorities", code)?;
        let create = device.runtime.stream_create_with_priority;
        // Communication that is ready must not wait behind the blocks of a large kernel.
        // SAFETY: the function writes one pointer.
        let code = unsafe { create(&mut device.stream, STREAM_NON_BLOCKING, highest) };
        device.check("creating a stream", code)?;
        Ok(device)
    }

    /// The runtime index.
    pub fn index(&self) -> u32 {
        self.index as u32
    }

    /// Makes this the current device of the thread until the guard is dropped. A CUDA graph that
    /// another thread captures does not restrict this one meanwhile.
    pub fn make_current(&self) -> Result<CurrentDevice> {
        let mut previous = self.index;
        // SAFETY: the function writes one integer.
        let code = unsafe { (self.runtime.get_device)(&mut previous) };
        self.check("querying the current device", code)?;
        // SAFETY: the function accepts any index.
        let code = unsafe { (self.runtime.set_device)(self.index) };
        self.check(&format!("device {}", self.index), code)?;
        let mut guard =
            CurrentDevice { runtime: self.runtime.clone(), previous, mode: CAPTURE_MODE_RELAXED };
        guard.exchange_capture_mode();
        Ok(guard)
    }

    pub fn check(&self, what: &str, code: c_int) -> Result {
        check(&self.runtime, what, code)
    }

    /// Allocates device memory for use on this stream, in stream order. Other allocators synchronise
    /// the whole device, which may be running a collective that waits for this rank.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory> {
        let _guard = self.make_current()?;
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.allocator.malloc)(&mut start, bytes.max(1), self.stream) };
        self.check(&format!("allocating {bytes} bytes on device {}", self.index), code)?;
        Ok(DeviceMemory { start, device: self.clone() })
    }

    /// Enqueues a copy to the device. Both buffers must live until the stream is idle.
    pub fn copy_from_host(&self, to: *mut c_void, from: &[u8]) -> Result {
        self.copy(to, from.as_ptr().cast(), from.len())
    }

    /// Enqueues a copy to the host, under the same condition.
    pub fn copy_to_host(&self, to: &mut [u8], from: *const c_void) -> Result {
        self.copy(to.as_mut_ptr().cast(), from, to.len())
    }

    /// Enqueues a copy in either direction or on the device, under the same condition.
    pub fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        let memcpy = self.runtime.memcpy_async;
        // SAFETY: callers pass memory of this length that lives until the stream is idle.
        let code = unsafe { memcpy(to, from, bytes, MEMCPY_DEFAULT, self.stream) };
        self.check("copying to or from the device", code)
    }

    /// An event to record, from the pool.
    pub fn take_event(&self) -> Result<RawEvent> {
        let pooled = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(event) = pooled {
            return Ok(event);
        }
        let mut event = null_mut();
        let create = self.runtime.event_create_with_flags;
        // SAFETY: the function writes one pointer.
        let code = unsafe { create(&mut event, EVENT_DISABLE_TIMING) };
        self.check("creating an event", code).map(|()| event)
    }

    /// Returns an event to the pool. Streams that wait for its last record continue to do so.
    pub fn return_event(&self, event: RawEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Whether work on the stream is being captured into a graph instead of running.
    pub fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream is valid; the function writes one integer.
        let code = unsafe { (self.runtime.stream_is_capturing)(self.stream, &mut status) };
        self.check("querying the capture of the stream", code).map(|()| status != 0)
    }

    /// Waits until the stream is idle.
    pub fn synchronize(&self) -> Result {
        // SAFETY: the stream is valid.
        let code = unsafe { (self.runtime.stream_synchronize)(self.stream) };
        self.check("synchronising the stream", code)
    }

    /// Whether the stream is idle.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is valid.
        match unsafe { (self.runtime.stream_query)(self.stream) } {
            NOT_READY => Ok(false),
            code => self.check("querying the stream", code).map(|()| true),
        }
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner);
        for event in events.drain(..) {
            // SAFETY: the event is valid and unused from here on.
            unsafe { (self.runtime.event_destroy)(event) };
        }
        if !self.stream.is_null() {
            // SAFETY: the stream is valid and unused from here on.
            unsafe { (self.runtime.stream_destroy)(self.stream) };
        }
    }
}

/// Restores the previous current device of the thread when dropped.
pub struct CurrentDevice {
    runtime: Arc<Runtime>,
    previous: c_int,
    /// The capture mode of the thread that is not in effect.
    mode: c_int,
}

impl CurrentDevice {
    fn exchange_capture_mode(&mut self) {
        // SAFETY: the function exchanges one integer and fails only for an unknown mode.
        unsafe { (self.runtime.thread_exchange_stream_capture_mode)(&mut self.mode) };
    }
}

impl Drop for CurrentDevice {
    fn drop(&mut self) {
        self.exchange_capture_mode();
        // SAFETY: the function accepts any index.
        unsafe { (self.runtime.set_device)(self.previous) };
    }
}

pub struct DeviceMemory {
    pub start: *mut c_void,
    device: Arc<GpuDevice>,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for DeviceMemory {}
// SAFETY: a shared reference only exposes the address.
unsafe impl Sync for DeviceMemory {}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by the matching function on this stream.
        unsafe { (self.device.allocator.free)(self.start, self.device.stream) };
    }
}
