//! A GPU and its memory.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_comm::gpu_runtime::{
    DEVICE_PROPERTIES_BYTES, MEMCPY_DEFAULT, Runtime, STREAM_NON_BLOCKING, SUCCESS, Stream, Vendor,
};

use super::{GpuError, GpuResult};

/// A device with one stream.
pub struct RooflineGpu {
    runtime: Arc<Runtime>,
    stream: Stream,
    index: c_int,
    name: String,
}

impl RooflineGpu {
    /// Opens a visible device and makes it current on this thread.
    pub fn open(vendor: Vendor, index: u32) -> GpuResult<Self> {
        Self::with(Runtime::open(vendor)?, index)
    }

    pub(super) fn with(runtime: Runtime, index: u32) -> GpuResult<Self> {
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        let runtime = Arc::new(runtime);
        let mut device = Self { runtime, stream: null_mut(), index, name: String::new() };
        let mut count = 0;
        // SAFETY: the function writes one integer.
        let code = unsafe { (device.runtime.get_device_count)(&mut count) };
        device.check("device count", code)?;
        if index >= count {
            let why = format!("only {count} visible to this rank");
            return Err(GpuError::new(format!("GPU {index}"), why));
        }
        // SAFETY: the function accepts any index.
        let code = unsafe { (device.runtime.set_device)(index) };
        device.check("select device", code)?;
        // SAFETY: the function writes one pointer.
        let code = unsafe {
            (device.runtime.stream_create_with_priority)(&mut device.stream, STREAM_NON_BLOCKING, 0)
        };
        device.check("a stream", code)?;
        device.name = device.read_name()?;
        Ok(device)
    }

    /// The model name, the first field of the device properties.
    fn read_name(&self) -> GpuResult<String> {
        let mut properties = vec![0u64; DEVICE_PROPERTIES_BYTES / 8];
        // SAFETY: the buffer is larger than the properties of any version.
        let code = unsafe {
            (self.runtime.get_device_properties)(properties.as_mut_ptr().cast(), self.index)
        };
        self.check("device properties", code)?;
        let bytes: Vec<u8> = properties[..32].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = CStr::from_bytes_until_nul(&bytes).map(|name| name.to_string_lossy());
        Ok(name.map_or_else(|_| format!("GPU {}", self.index), |name| name.into_owned()))
    }

    /// Index among the visible devices.
    pub fn index(&self) -> u32 {
        self.index.unsigned_abs()
    }

    /// Model name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn vendor(&self) -> Vendor {
        self.runtime.vendor
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    fn check(&self, what: &str, code: c_int) -> GpuResult {
        let error = || GpuError::new(what, self.runtime.error_string(code));
        if code == SUCCESS { Ok(()) } else { Err(error()) }
    }

    /// Allocates device memory.
    pub fn alloc(&self, bytes: usize) -> GpuResult<GpuBuffer> {
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.runtime.malloc)(&mut start, bytes.max(1)) };
        self.check(&format!("allocation of {bytes} bytes on GPU {}", self.index), code)?;
        Ok(GpuBuffer { start, bytes, pinned: false, runtime: self.runtime.clone() })
    }

    /// Allocates pinned host memory.
    pub fn alloc_pinned(&self, bytes: usize) -> GpuResult<GpuBuffer> {
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.runtime.host_alloc)(&mut start, bytes.max(1), 0) };
        self.check(&format!("allocation of {bytes} bytes of pinned memory"), code)?;
        Ok(GpuBuffer { start, bytes, pinned: true, runtime: self.runtime.clone() })
    }

    /// Copies from host memory and waits.
    pub fn copy_from_host(&self, to: &GpuBuffer, from: &[u8]) -> GpuResult {
        let bytes = from.len().min(to.bytes);
        // SAFETY: both hold `bytes` bytes and outlive the synchronisation below.
        let code = unsafe {
            let from = from.as_ptr().cast();
            (self.runtime.memcpy_async)(to.start, from, bytes, MEMCPY_DEFAULT, self.stream)
        };
        self.check("copy to the GPU", code)?;
        self.synchronize()
    }

    /// Copies to host memory and waits.
    #[cfg(test)]
    pub fn copy_to_host(&self, to: &mut [u8], from: &GpuBuffer) -> GpuResult {
        let bytes = to.len().min(from.bytes);
        // SAFETY: both hold `bytes` bytes and outlive the synchronisation below.
        let code = unsafe {
            let to = to.as_mut_ptr().cast();
            (self.runtime.memcpy_async)(to, from.start, bytes, MEMCPY_DEFAULT, self.stream)
        };
        self.check("copy from the GPU", code)?;
        self.synchronize()
    }

    /// Queues a copy of as many bytes as both buffers hold.
    pub fn copy(&self, to: &GpuBuffer, from: &GpuBuffer) -> GpuResult {
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: both hold `bytes` bytes, and buffers are freed only after the stream is idle.
        let code = unsafe {
            (self.runtime.memcpy_async)(to.start, from.start, bytes, MEMCPY_DEFAULT, self.stream)
        };
        self.check("a copy", code)
    }

    /// Time of `calls` calls queued by `queue`.
    pub fn time(&self, calls: u64, mut queue: impl FnMut() -> GpuResult) -> GpuResult<Duration> {
        let begin = Instant::now();
        let queued = (0..calls).try_for_each(|_| queue());
        // Also after an error: queued work uses buffers that are freed next.
        self.synchronize()?;
        queued.map(|()| begin.elapsed())
    }

    /// Waits for all queued work.
    pub fn synchronize(&self) -> GpuResult {
        // SAFETY: the stream is valid.
        let code = unsafe { (self.runtime.stream_synchronize)(self.stream) };
        self.check("GPU work", code)
    }
}

impl Drop for RooflineGpu {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: the stream is valid and not used afterwards.
            unsafe { (self.runtime.stream_destroy)(self.stream) };
        }
    }
}

/// Device memory or pinned host memory.
pub struct GpuBuffer {
    pub(super) start: *mut c_void,
    pub(super) bytes: usize,
    pinned: bool,
    runtime: Arc<Runtime>,
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        let free = if self.pinned { self.runtime.free_host } else { self.runtime.free };
        // SAFETY: allocated by the matching function; both wait for outstanding work.
        unsafe { free(self.start) };
    }
}
