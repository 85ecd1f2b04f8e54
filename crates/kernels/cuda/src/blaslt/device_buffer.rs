//! Device memory of the BLAS layer.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{CAPTURE_MODE_RELAXED, Runtime, SUCCESS};

use crate::Ptr;

/// Device memory that is freed when dropped. It is not allocated in stream order, so that its address
/// stays valid for captured graphs.
pub(crate) struct DeviceBuffer {
    start: *mut c_void,
    bytes: usize,
    runtime: Arc<Runtime>,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for DeviceBuffer {}
// SAFETY: a shared reference only exposes the address.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Allocates memory on the current device; the error is the runtime's code.
    pub fn allocate(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self, c_int> {
        let mut start = null_mut();
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the functions exchange one integer and write one pointer. Only the relaxed mode allows
        // an allocation during a capture.
        let code = unsafe {
            (runtime.thread_exchange_stream_capture_mode)(&mut mode);
            let code = (runtime.malloc)(&mut start, bytes.max(1));
            (runtime.thread_exchange_stream_capture_mode)(&mut mode);
            code
        };
        if code != SUCCESS {
            return Err(code);
        }
        Ok(Self { start, bytes, runtime: runtime.clone() })
    }

    /// Its address.
    pub fn ptr(&self) -> Ptr {
        Ptr(self.start as u64)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by the matching function. The runtime waits for kernels that use it.
        unsafe { (self.runtime.free)(self.start) };
    }
}
