//! The stream of a device.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_comm::gpu_runtime::{Runtime, STREAM_NON_BLOCKING, SUCCESS, Stream};

/// A stream, destroyed when dropped. Memory that is freed in its order keeps it, because tensors may outlive
/// their device.
pub(crate) struct OwnedStream {
    pub raw: Stream,
    runtime: Arc<Runtime>,
    /// Memory whose free is deferred; `None` if it is freed at once.
    deferred: Mutex<Option<Vec<Memory>>>,
}

/// Device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub start: *mut c_void,
    pub is_stream_ordered: bool,
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
            SUCCESS => Ok(Self { raw, runtime: runtime.clone(), deferred: Mutex::default() }),
            code => Err(code),
        }
    }

    /// Frees memory after all work so far; during a capture, after that.
    pub fn free(&self, memory: Memory) {
        if let Some(deferred) = &mut *self.lock() {
            return deferred.push(memory);
        }
        // SAFETY: allocated by the matching function, which is in stream order or waits for all work.
        unsafe {
            match self.runtime.stream_ordered.filter(|_| memory.is_stream_ordered) {
                Some(allocator) => (allocator.free)(memory.start, self.raw),
                None => (self.runtime.free)(memory.start),
            }
        };
    }

    /// Defers frees: in a capture, a free would become part of the graph.
    pub fn defer_frees(&self) {
        self.lock().get_or_insert_default();
    }

    /// Frees what was deferred.
    pub fn free_deferred(&self) {
        let deferred = self.lock().take();
        deferred.into_iter().flatten().for_each(|memory| self.free(memory));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Memory>>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // SAFETY: the stream is valid and not used afterwards.
        unsafe { (self.runtime.stream_destroy)(self.raw) };
    }
}
