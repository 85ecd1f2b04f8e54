//! The destination of a message in user memory.

use crate::reduce_kernel::{reduce, reduce_pair};
use crate::transport::RecvAction;

/// The destination of a posted receive.
#[derive(Clone, Copy)]
pub struct UserBuffer {
    start: *mut u8,
    length: usize,
    action: RecvAction,
    /// Called by a test while the bytes are being copied or reduced.
    #[cfg(test)]
    pub on_write: Option<fn()>,
}

// SAFETY: a network accesses the memory from one thread at a time; the caller of `post_receive`
// guarantees that it is valid.
unsafe impl Send for UserBuffer {}

impl UserBuffer {
    /// A destination, with the guarantees of [`Transport`](crate::transport::Transport).
    pub fn new(into: *mut [u8], action: RecvAction) -> Self {
        Self {
            start: into.cast(),
            length: into.len(),
            action,
            #[cfg(test)]
            on_write: None,
        }
    }

    /// The memory from offset `at` on, if a network may write directly to it.
    pub fn direct(&mut self, at: usize, length: usize) -> Option<&mut [u8]> {
        matches!(self.action, RecvAction::Copy).then(|| self.slice(at, length))
    }

    /// Copies or reduces payload bytes into the destination at offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        #[cfg(test)]
        self.on_write.iter().for_each(|on_write| on_write());
        let (action, at) = (self.action, at.min(self.length));
        let into = self.slice(at, bytes.len());
        match action {
            RecvAction::Copy => into.copy_from_slice(&bytes[..into.len()]),
            RecvAction::Reduce(dtype, op) => reduce(dtype, op, into, bytes),
            RecvAction::ReduceInto(dtype, op, operand) => {
                // SAFETY: the operand is as long as the destination, in which `into` starts at `at`,
                // and not written while the receive is posted.
                let operand = unsafe { &(&*operand)[at..at + into.len()] };
                reduce_pair(dtype, op, into, operand, bytes);
            }
        }
    }

    fn slice(&mut self, at: usize, length: usize) -> &mut [u8] {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        // SAFETY: the range lies within the destination, which no one else accesses meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}
