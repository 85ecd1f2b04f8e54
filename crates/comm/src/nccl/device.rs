//! A device, its stream and its memory.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use crate::gpu_runtime::{
    MEMCPY_DEFAULT, NOT_READY, Runtime, STREAM_NON_BLOCKING, SUCCESS, Stream,
    StreamOrderedAllocator,
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
        let mut device = Self { runtime, stream: null_mut(), allocator, index: index as c_int };
        let _guard = device.make_current()?;
        let create = device.runtime.stream_create_with_flags;
        // SAFETY: the function writes one pointer.
        let code = unsafe { create(&mut device.stream, STREAM_NON_BLOCKING) };
        device.check("creating a stream", code)?;
        Ok(device)
    }

    /// The runtime index.
    pub fn index(&self) -> u32 {
        self.index as u32
    }

    /// Makes this the current device of the thread until the guard is dropped.
    pub fn make_current(&self) -> Result<CurrentDevice> {
        let mut previous = self.index;
        // SAFETY: the function writes one integer.
        let code = unsafe { (self.runtime.get_device)(&mut previous) };
        self.check("querying the current device", code)?;
        // SAFETY: the function accepts any index.
        let code = unsafe { (self.runtime.set_device)(self.index) };
        self.check(&format!("device {}", self.index), code)?;
        Ok(CurrentDevice { runtime: self.runtime.clone(), previous })
    }

    pub fn check(&self, what: &str, code: c_int) -> Result {
        check(&self.runtime, what, code)
    }

    /// Allocates device memory in stream order. Other allocators synchronise the whole device,
    /// which may be running a collective that waits for this rank.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory> {
        let _guard = self.make_current()?;
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.allocator.malloc)(&mut start, bytes.max(1), self.stream) };
        self.check(&format!("allocating {bytes} bytes on device {}", self.index), code)?;
        let memory = DeviceMemory { start, bytes, device: self.clone() };
        self.synchronize()?;
        Ok(memory)
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
}

impl Drop for CurrentDevice {
    fn drop(&mut self) {
        // SAFETY: the function accepts any index.
        unsafe { (self.runtime.set_device)(self.previous) };
    }
}

pub struct DeviceMemory {
    pub start: *mut c_void,
    pub bytes: usize,
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
