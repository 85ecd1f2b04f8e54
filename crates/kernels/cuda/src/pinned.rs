//! Pinned (page-locked) host memory, which the device accesses directly.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{Runtime, SUCCESS};

/// Pinned host memory. Copies that access it must have completed when it is dropped.
pub(crate) struct Pinned {
    pub start: *mut c_void,
    pub bytes: usize,
    runtime: Arc<Runtime>,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates uninitialised memory; the error is the runtime's code.
    pub fn alloc(runtime: &Arc<Runtime>, bytes: usize) -> Result<Self, c_int> {
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        match unsafe { (runtime.host_alloc)(&mut start, bytes.max(1), 0) } {
            SUCCESS => Ok(Self { start, bytes, runtime: runtime.clone() }),
            code => Err(code),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the matching function; copies that access it have completed.
        unsafe { (self.runtime.free_host)(self.start) };
    }
}
