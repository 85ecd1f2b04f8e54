//! A device and memory on it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_comm::nccl::Vendor;

use super::GpuError;
use super::sys::{ANY_DIRECTION, NON_BLOCKING, OK, PROPERTIES_BYTES, Runtime, Stream};

/// One device, and a queue of work on it.
pub struct Device {
    runtime: Arc<Runtime>,
    stream: Stream,
    number: c_int,
    name: String,
}

impl Device {
    /// Opens a device, as the runtime counts those that it sees. From now on this thread works with
    /// it.
    pub fn open(vendor: Vendor, number: u32) -> Result<Self, GpuError> {
        Self::with(Runtime::open(vendor)?, number)
    }

    pub(super) fn with(runtime: Runtime, number: u32) -> Result<Self, GpuError> {
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        let runtime = Arc::new(runtime);
        let mut device = Self { runtime, stream: null_mut(), number, name: String::new() };
        let mut count = 0;
        // SAFETY: the function writes one number.
        let code = unsafe { (device.runtime.device_count)(&mut count) };
        device.check("to count the GPUs", code)?;
        if number >= count {
            let what = format!("GPU {number}");
            return Err(GpuError { what, why: format!("this rank sees {count}") });
        }
        // SAFETY: the function takes any number.
        let code = unsafe { (device.runtime.set_device)(number) };
        device.check("to use the GPU", code)?;
        // SAFETY: the function writes one pointer.
        let code = unsafe { (device.runtime.stream_create)(&mut device.stream, NON_BLOCKING) };
        device.check("a stream", code)?;
        device.name = device.read_name()?;
        Ok(device)
    }

    /// The model, which is the first of a device's properties.
    fn read_name(&self) -> Result<String, GpuError> {
        let mut properties = vec![0u64; PROPERTIES_BYTES / 8];
        // SAFETY: there is more room than any version's properties take.
        let code =
            unsafe { (self.runtime.properties)(properties.as_mut_ptr().cast(), self.number) };
        self.check("the GPU's name", code)?;
        let bytes: Vec<u8> =
            properties.iter().take(32).flat_map(|word| word.to_ne_bytes()).collect();
        let name = CStr::from_bytes_until_nul(&bytes).map(|name| name.to_string_lossy());
        Ok(name.map_or_else(|_| format!("GPU {}", self.number), |name| name.into_owned()))
    }

    /// As the runtime counts them.
    pub fn number(&self) -> u32 {
        self.number.unsigned_abs()
    }

    /// Its model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        self.runtime.vendor
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    fn check(&self, what: &str, code: c_int) -> Result<(), GpuError> {
        match code {
            OK => Ok(()),
            code => Err(GpuError { what: what.to_owned(), why: self.runtime.explain(code) }),
        }
    }

    /// Memory on it.
    pub fn memory(&self, bytes: usize) -> Result<Memory, GpuError> {
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.runtime.malloc)(&mut start, bytes.max(1)) };
        self.check(&format!("{bytes} bytes on GPU {}", self.number), code)?;
        Ok(Memory { start, bytes, pinned: false, runtime: self.runtime.clone() })
    }

    /// Memory of the host that stays where it is, so that the device reads and writes it by itself.
    pub fn pinned(&self, bytes: usize) -> Result<Memory, GpuError> {
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.runtime.host_malloc)(&mut start, bytes.max(1), 0) };
        self.check(&format!("{bytes} bytes of pinned memory"), code)?;
        Ok(Memory { start, bytes, pinned: true, runtime: self.runtime.clone() })
    }

    /// Fills memory.
    pub fn put(&self, to: &Memory, from: &[u8]) -> Result<(), GpuError> {
        let bytes = from.len().min(to.bytes);
        // SAFETY: both have so many bytes, and live until it was waited for.
        let code = unsafe {
            let from = from.as_ptr().cast();
            (self.runtime.copy)(to.start, from, bytes, ANY_DIRECTION, self.stream)
        };
        self.check("a copy to the GPU", code)?;
        self.wait()
    }

    /// Reads memory.
    #[cfg(test)]
    pub fn fetch(&self, to: &mut [u8], from: &Memory) -> Result<(), GpuError> {
        let bytes = to.len().min(from.bytes);
        // SAFETY: both have so many bytes, and live until it was waited for.
        let code = unsafe {
            let to = to.as_mut_ptr().cast();
            (self.runtime.copy)(to, from.start, bytes, ANY_DIRECTION, self.stream)
        };
        self.check("a copy from the GPU", code)?;
        self.wait()
    }

    /// Queues a copy of as many bytes as both have.
    pub fn copy(&self, to: &Memory, from: &Memory) -> Result<(), GpuError> {
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: both have so many bytes, and memory is only freed when the queue is empty.
        let code =
            unsafe { (self.runtime.copy)(to.start, from.start, bytes, ANY_DIRECTION, self.stream) };
        self.check("a copy", code)
    }

    /// How long so many calls take that `queue` queues.
    pub fn time(
        &self,
        calls: u64,
        mut queue: impl FnMut() -> Result<(), GpuError>,
    ) -> Result<Duration, GpuError> {
        let begin = Instant::now();
        let queued = (0..calls).try_for_each(|_| queue());
        // Even then: what is queued uses memory that is freed next.
        self.wait()?;
        queued.map(|()| begin.elapsed())
    }

    /// Waits until all that is queued is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is ours.
        let code = unsafe { (self.runtime.stream_wait)(self.stream) };
        self.check("work on the GPU", code)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: the stream is ours, and nobody uses it any more.
            unsafe { (self.runtime.stream_destroy)(self.stream) };
        }
    }
}

/// Memory on a device, or of the host and pinned.
pub struct Memory {
    pub(super) start: *mut c_void,
    pub(super) bytes: usize,
    pinned: bool,
    runtime: Arc<Runtime>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and both functions wait for what the device does with it.
        unsafe {
            match self.pinned {
                true => (self.runtime.host_free)(self.start),
                false => (self.runtime.free)(self.start),
            }
        };
    }
}
