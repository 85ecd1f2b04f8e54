//! The registered memory of a connection, used as a ring.

use std::collections::VecDeque;

use crate::plan::{CANARY, MAX_GROUP_BYTES};

/// Bytes between messages, which nothing may change.
pub const GAP: usize = 64;
const BYTES: usize = 3 * MAX_GROUP_BYTES;

/// Memory that the plug-in accesses, so that it is not borrowed.
pub struct Arena {
    memory: *mut [u8],
    /// Ranges in use, oldest first.
    used: VecDeque<(usize, usize)>,
}

// SAFETY: owned memory.
unsafe impl Send for Arena {}

impl Arena {
    pub fn new() -> Self {
        let memory = vec![CANARY; BYTES].into_boxed_slice();
        Self { memory: Box::into_raw(memory), used: VecDeque::new() }
    }

    pub fn start(&self) -> *mut u8 {
        self.memory.cast()
    }

    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The start of free memory of this length, if there is so much in a row.
    pub fn allocate(&mut self, length: usize) -> Option<*mut u8> {
        let at = match (self.used.front(), self.used.back()) {
            (Some(&(first, _)), Some(&(last, last_length))) => {
                let end = last + last_length;
                match last >= first {
                    true if end + length <= BYTES => end,
                    true if length < first => 0,
                    false if end + length < first => end,
                    _ => return None,
                }
            }
            _ => 0,
        };
        self.used.push_back((at, length));
        // SAFETY: within the memory.
        Some(unsafe { self.start().add(at) })
    }

    /// Frees the oldest allocation.
    pub fn free(&mut self) {
        self.used.pop_front().unwrap();
    }

    /// Overwrites all of the memory, after the plug-in has given it back.
    pub fn reuse(&mut self) {
        // SAFETY: nothing else accesses the memory, which is the claim under test.
        unsafe { (&mut *self.memory).fill(CANARY) };
    }

    /// Whether nothing has changed since then.
    pub fn is_unchanged(&self) -> bool {
        let expected = vec![CANARY; BYTES];
        // SAFETY: as above.
        unsafe { *self.memory == *expected }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated as a box, and given back by the plug-in.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
