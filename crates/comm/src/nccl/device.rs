//! A device and memory on it.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::sys::{ANY_DIRECTION, Functions, NON_BLOCKING, NOT_READY, OK, Stream};
use crate::CommError;

/// One device, and a queue of work on it.
pub struct Device {
    pub functions: Arc<Functions>,
    pub stream: Stream,
    number: c_int,
}

// SAFETY: the runtime may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: by several at once, too.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device.
    pub fn open(functions: Arc<Functions>, number: u32) -> Result<Self, CommError> {
        let mut device = Self { functions, stream: null_mut(), number: number as c_int };
        let _selected = device.select()?;
        // SAFETY: the function writes one pointer.
        let code = unsafe { (device.functions.stream_create)(&mut device.stream, NON_BLOCKING) };
        device.check("a stream", code)?;
        Ok(device)
    }

    /// As the runtime counts them.
    pub fn number(&self) -> u32 {
        self.number as u32
    }

    /// Makes it the one that this thread works with, until what is returned is dropped.
    pub fn select(&self) -> Result<Selected, CommError> {
        let mut before = self.number;
        // SAFETY: the function writes one number.
        let code = unsafe { (self.functions.get_device)(&mut before) };
        self.check("the device of a thread", code)?;
        // SAFETY: the function takes any number.
        let code = unsafe { (self.functions.set_device)(self.number) };
        self.check(&format!("device {}", self.number), code)?;
        Ok(Selected { functions: self.functions.clone(), before })
    }

    pub fn check(&self, what: &str, code: c_int) -> Result<(), CommError> {
        match code {
            OK => Ok(()),
            code => Err(CommError::System {
                what: what.to_owned(),
                why: self.functions.explain_runtime(code),
            }),
        }
    }

    /// Memory on it. It comes and goes in the order of the stream, for other ways to allocate wait
    /// for all that the device does: a collective, say, of a rank that waits for this one.
    pub fn memory(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory, CommError> {
        let _selected = self.select()?;
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.functions.malloc)(&mut start, bytes.max(1), self.stream) };
        self.check(&format!("{bytes} bytes on device {}", self.number), code)?;
        let memory = DeviceMemory { start, bytes, device: self.clone() };
        self.wait()?;
        Ok(memory)
    }

    /// Queues a copy of host memory to the device. Both must live until the queue is empty.
    pub fn put(&self, to: *mut c_void, from: &[u8]) -> Result<(), CommError> {
        self.copy(to, from.as_ptr().cast(), from.len())
    }

    /// Queues a copy from the device to host memory, likewise.
    pub fn fetch(&self, to: &mut [u8], from: *const c_void) -> Result<(), CommError> {
        self.copy(to.as_mut_ptr().cast(), from, to.len())
    }

    /// Queues a copy on the device, likewise.
    pub fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the callers give memory of this length, which lives until the queue is empty.
        let code = unsafe { (self.functions.copy)(to, from, bytes, ANY_DIRECTION, self.stream) };
        self.check("a copy to or from the device", code)
    }

    /// Waits until all that is queued is done.
    pub fn wait(&self) -> Result<(), CommError> {
        // SAFETY: the stream is ours.
        let code = unsafe { (self.functions.stream_wait)(self.stream) };
        self.check("work on the device", code)
    }

    /// Whether all that is queued is done.
    pub fn is_idle(&self) -> Result<bool, CommError> {
        // SAFETY: the stream is ours.
        match unsafe { (self.functions.stream_query)(self.stream) } {
            NOT_READY => Ok(false),
            code => self.check("work on the device", code).map(|()| true),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: the stream is ours, and nobody uses it any more.
            unsafe { (self.functions.stream_destroy)(self.stream) };
        }
    }
}

/// While this lives, a thread works with another device than before.
pub struct Selected {
    functions: Arc<Functions>,
    before: c_int,
}

impl Drop for Selected {
    fn drop(&mut self) {
        // SAFETY: the function takes any number.
        unsafe { (self.functions.set_device)(self.before) };
    }
}

/// Memory on a device.
pub struct DeviceMemory {
    pub start: *mut c_void,
    pub bytes: usize,
    device: Arc<Device>,
}

// SAFETY: it is memory that is owned, wherever it lies.
unsafe impl Send for DeviceMemory {}
// SAFETY: a shared one tells its address only.
unsafe impl Sync for DeviceMemory {}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated so.
        unsafe { (self.device.functions.free)(self.start, self.device.stream) };
    }
}
