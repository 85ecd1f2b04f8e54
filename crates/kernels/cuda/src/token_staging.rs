//! Pinned host memory for token ids: copies from it do not wait for the stream.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_comm::Event;
use regatta_comm::gpu_runtime::Runtime;

use crate::runtime_memory::RuntimeMemory;

/// Copies that may be in flight.
const SLOTS: usize = 16;

/// Why tokens are not staged.
pub enum StagingError {
    /// An operation that was queued earlier has failed.
    Queued(String),
    /// There is no pinned memory.
    Allocation(String),
}

/// A ring of pinned buffers.
pub struct TokenStaging {
    runtime: Arc<Runtime>,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    slots: [Slot; SLOTS],
    next: usize,
}

#[derive(Default)]
struct Slot {
    memory: Option<RuntimeMemory>,
    /// Completion of the last copy from it.
    copied: Option<Event>,
}

impl TokenStaging {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, ring: Mutex::default() }
    }

    /// Calls `copy` with a pinned copy of the tokens; `copy` returns the completion of its copy.
    pub fn stage(
        &self,
        tokens: &[u32],
        copy: impl FnOnce(*const c_void, usize) -> Option<Event>,
    ) -> Result<(), StagingError> {
        let bytes = size_of_val(tokens);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let index = ring.next;
        ring.next = (index + 1) % SLOTS;
        let slot = &mut ring.slots[index];
        if let Some(copied) = slot.copied.take() {
            copied.wait().map_err(|error| StagingError::Queued(error.to_string()))?;
        }
        let start = match &slot.memory {
            Some(memory) if memory.bytes >= bytes => memory.start,
            _ => slot.memory.insert(self.alloc(bytes.next_power_of_two())?).start,
        };
        // SAFETY: the slot has this many bytes, and no copy from it is in flight.
        unsafe { std::ptr::copy_nonoverlapping(tokens.as_ptr().cast(), start.cast::<u8>(), bytes) };
        slot.copied = copy(start, bytes);
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<RuntimeMemory, StagingError> {
        let cause = |code| format!("{bytes} bytes: {}", self.runtime.error_string(code));
        RuntimeMemory::pinned(&self.runtime, bytes)
            .map_err(|code| StagingError::Allocation(cause(code)))
    }
}
