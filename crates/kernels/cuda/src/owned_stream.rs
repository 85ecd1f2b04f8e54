//! The stream of a device, and the memory that is freed in its order.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_comm::gpu_runtime::{Runtime, STREAM_NON_BLOCKING, SUCCESS, Stream};
use regatta_device::ops::{ArenaOverflow, ArenaUse};

use crate::arena::Arena;

/// A stream, destroyed when dropped. Memory that is freed in its order keeps it, because tensors may outlive
/// their device.
pub(crate) struct OwnedStream {
    pub raw: Stream,
    runtime: Arc<Runtime>,
    /// Memory whose free is deferred; `None` if it is freed at once.
    deferred: Mutex<Option<Vec<(*mut c_void, MemorySource)>>>,
    arena: Mutex<Option<ReservedMemory>>,
}

/// Where memory is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemorySource {
    /// The arena of the stream.
    Arena,
    /// The stream-ordered allocator.
    StreamOrdered,
    /// `cudaMalloc`.
    Device,
}

/// One allocation, of which tensors have parts. Parts are used and freed in the order of the stream: a tensor
/// in memory that was freed earlier is accessed after all accesses of its predecessor.
struct ReservedMemory {
    start: *mut c_void,
    offsets: Arena,
    /// The first request that did not fit.
    overflow: Option<ArenaOverflow>,
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
            SUCCESS => Ok(Self {
                raw,
                runtime: runtime.clone(),
                deferred: Mutex::default(),
                arena: Mutex::default(),
            }),
            code => Err(code),
        }
    }

    /// Reserves the arena, unless the stream has one. The error is the runtime's code.
    pub fn reserve(&self, bytes: usize) -> Result<(), c_int> {
        let mut arena = self.lock_arena();
        if arena.is_some() {
            return Ok(());
        }
        let mut start = null_mut();
        // SAFETY: the function writes one pointer.
        match unsafe { (self.runtime.malloc)(&mut start, bytes.max(1)) } {
            SUCCESS => {
                *arena = Some(ReservedMemory { start, offsets: Arena::new(bytes), overflow: None });
                Ok(())
            }
            code => Err(code),
        }
    }

    /// Memory of the arena; `None` if there is no arena, or none that holds it.
    pub fn allocate_from_arena(&self, bytes: usize) -> Option<*mut c_void> {
        let mut arena = self.lock_arena();
        let ReservedMemory { start, offsets, overflow } = arena.as_mut()?;
        if let Some(offset) = offsets.allocate(bytes) {
            return Some(start.wrapping_byte_add(offset));
        }
        overflow.get_or_insert(ArenaOverflow {
            requested: bytes as u64,
            free: (offsets.bytes() - offsets.used()) as u64,
            largest_free: offsets.largest_free() as u64,
        });
        None
    }

    /// How the arena is used, if there is one.
    pub fn arena_use(&self) -> Option<ArenaUse> {
        self.lock_arena().as_ref().map(|ReservedMemory { offsets, overflow, .. }| ArenaUse {
            bytes: offsets.bytes() as u64,
            used: offsets.used() as u64,
            peak: offsets.peak() as u64,
            overflow: *overflow,
        })
    }

    /// Frees memory after all work so far; during a capture, after that.
    pub fn free(&self, start: *mut c_void, source: MemorySource) {
        if let Some(deferred) = &mut *self.lock() {
            return deferred.push((start, source));
        }
        match (source, self.runtime.stream_ordered) {
            (MemorySource::Arena, _) => self.free_to_arena(start),
            // SAFETY: allocated by the matching function; freed in stream order.
            (MemorySource::StreamOrdered, Some(allocator)) => unsafe {
                (allocator.free)(start, self.raw);
            },
            // SAFETY: allocated by the matching function, which waits for all work.
            _ => unsafe {
                (self.runtime.free)(start);
            },
        }
    }

    fn free_to_arena(&self, start: *mut c_void) {
        let mut arena = self.lock_arena();
        let freed = arena
            .as_mut()
            .is_some_and(|arena| arena.offsets.free(start.addr() - arena.start.addr()));
        debug_assert!(freed, "memory of the arena is freed twice");
    }

    /// Defers frees: in a capture, a free would become part of the graph.
    pub fn defer_frees(&self) {
        self.lock().get_or_insert_default();
    }

    /// Frees what was deferred.
    pub fn free_deferred(&self) {
        let deferred = self.lock().take();
        deferred.into_iter().flatten().for_each(|(start, source)| self.free(start, source));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<(*mut c_void, MemorySource)>>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_arena(&self) -> MutexGuard<'_, Option<ReservedMemory>> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Some(arena) = self.lock_arena().take() {
            // SAFETY: allocated by the matching function, which waits for all work. All tensors of the arena
            // keep the stream, and are dropped.
            unsafe { (self.runtime.free)(arena.start) };
        }
        // SAFETY: the stream is valid and not used afterwards.
        unsafe { (self.runtime.stream_destroy)(self.raw) };
    }
}
