//! Memory that is not allocated in stream order.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{CAPTURE_MODE_RELAXED, Runtime, SUCCESS};

use crate::Ptr;

/// Uninitialised memory that is freed when dropped.
pub(crate) struct RuntimeMemory {
    pub start: *mut c_void,
    pub bytes: usize,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    _runtime: Arc<Runtime>,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for RuntimeMemory {}
// SAFETY: a shared reference only exposes the address.
unsafe impl Sync for RuntimeMemory {}

impl RuntimeMemory {
    /// Pinned (page-locked) host memory, which the device accesses directly; the error is the runtime's
    /// code. Copies that access it must have completed when it is dropped.
    pub fn pinned(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self, c_int> {
        let (mut start, free) = (null_mut(), runtime.free_host);
        // SAFETY: the function writes one pointer.
        match unsafe { (runtime.host_alloc)(&mut start, bytes.max(1), 0) } {
            SUCCESS => Ok(Self { start, bytes, free, _runtime: runtime.clone() }),
            code => Err(code),
        }
    }

    /// Memory of the current device, whose address stays valid for captured graphs; the error is the
    /// runtime's code.
    pub fn device(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self, c_int> {
        let (mut start, free) = (null_mut(), runtime.free);
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the functions exchange one integer and write one pointer. Only the relaxed mode allows
        // an allocation during a capture.
        let code = unsafe {
            (runtime.thread_exchange_stream_capture_mode)(&mut mode);
            let code = (runtime.malloc)(&mut start, bytes.max(1));
            (runtime.thread_exchange_stream_capture_mode)(&mut mode);
            code
        };
        match code {
            SUCCESS => Ok(Self { start, bytes, free, _runtime: runtime.clone() }),
            code => Err(code),
        }
    }

    /// Its address on the device.
    pub fn ptr(&self) -> Ptr {
        Ptr(self.start as u64)
    }
}

impl Drop for RuntimeMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by the matching function. The runtime waits for kernels that use device memory;
        // copies that access host memory have completed.
        unsafe { (self.free)(self.start) };
    }
}
