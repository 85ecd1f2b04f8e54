//! The stream of a device.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{Runtime, STREAM_NON_BLOCKING, SUCCESS, Stream};

/// A stream, destroyed when dropped. Memory that is freed in its order keeps it, because tensors may outlive
/// their device.
pub(crate) struct OwnedStream {
    pub raw: Stream,
    runtime: Arc<Runtime>,
}

// SAFETY: the runtime may be called from any thread.
unsafe impl Send for OwnedStream {}
// SAFETY: the runtime is thread-safe.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    /// Creates a stream on the current device; the error is the runtime's code.
    pub fn create(runtime: &Arc<Runtime>) -> Result<Self, c_int> {
        let mut raw = null_mut();
        let create = runtime.stream_create_with_priority;
        // SAFETY: the function writes one pointer.
        match unsafe { create(&mut raw, STREAM_NON_BLOCKING, 0) } {
            SUCCESS => Ok(Self { raw, runtime: runtime.clone() }),
            code => Err(code),
        }
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // SAFETY: the stream is valid and not used afterwards.
        unsafe { (self.runtime.stream_destroy)(self.raw) };
    }
}
