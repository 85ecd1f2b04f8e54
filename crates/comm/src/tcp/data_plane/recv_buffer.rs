//! The destination of a message's payload.

use crate::reduce_kernel::{reduce, reduce_pair};
use crate::tcp::frame::MessageKey;
use crate::transport::{RecvAction, RequestId};

/// A posted receive.
#[derive(Clone, Copy)]
pub struct PostedRecv {
    pub key: MessageKey,
    /// Hash of the signature of the collective.
    pub signature_hash: u32,
    pub request: RequestId,
    pub start: *mut u8,
    pub length: usize,
    pub action: RecvAction,
    /// The other operand of a reduction, if it is not the destination itself; `length` bytes.
    pub operand: Option<*const u8>,
}

// SAFETY: the memory is only accessed under the lock of the data plane; the caller of `post_receive`
// guarantees that it is valid.
unsafe impl Send for PostedRecv {}

/// The destination of a message's payload.
pub enum RecvBuffer {
    /// The memory of a posted receive.
    User(PostedRecv),
    /// An entry of the unexpected-message queue.
    Unexpected(Vec<u8>),
    /// The payload is dropped.
    Discard,
}

impl RecvBuffer {
    /// The memory, if the socket may be read directly into it.
    pub fn direct(&mut self, at: usize, left: usize) -> Option<&mut [u8]> {
        match self {
            Self::User(user) if user.action == RecvAction::Copy => Some(user.slice(at, left)),
            Self::Unexpected(bytes) => bytes.get_mut(at..at + left),
            _ => None,
        }
    }

    /// Copies or reduces payload bytes into the destination at offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::User(user) => {
                let (action, operand) = (user.action, user.operand(at, bytes.len()));
                let into = user.slice(at, bytes.len());
                match (action, operand) {
                    (RecvAction::Copy, _) => into.copy_from_slice(&bytes[..into.len()]),
                    (RecvAction::Reduce(dtype, op), None) => reduce(dtype, op, into, bytes),
                    (RecvAction::Reduce(dtype, op), Some(operand)) => {
                        reduce_pair(dtype, op, into, operand, bytes);
                    }
                }
            }
            Self::Unexpected(queued) => {
                if let Some(into) = queued.get_mut(at..at + bytes.len()) {
                    into.copy_from_slice(bytes);
                }
            }
            Self::Discard => {}
        }
    }
}

impl PostedRecv {
    #[cfg(test)]
    pub fn copy(key: MessageKey, hash: u32, request: RequestId, into: &mut [u8]) -> Self {
        let (start, length, action) = (into.as_mut_ptr(), into.len(), RecvAction::Copy);
        Self { key, signature_hash: hash, request, start, length, action, operand: None }
    }

    pub fn recv_buffer(&self) -> RecvBuffer {
        RecvBuffer::User(*self)
    }
    /// The other operand for the bytes at offset `at`, if it is not the destination.
    fn operand<'a>(&self, at: usize, length: usize) -> Option<&'a [u8]> {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        // SAFETY: the range lies within the operand, which is as long as the destination and not
        // written while the receive is posted.
        self.operand.map(|start| unsafe { std::slice::from_raw_parts(start.add(at), length) })
    }

    fn slice(&mut self, at: usize, length: usize) -> &mut [u8] {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        // SAFETY: the range lies within the destination, which no one else accesses meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}
