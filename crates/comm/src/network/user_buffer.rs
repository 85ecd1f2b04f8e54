//! The destination of a message in user memory.

use crate::reduce_kernel::{reduce, reduce_pair};
use crate::transport::RecvAction;
use crate::{DType, ReduceOp};

/// Reduces received bytes: the destination, the other operand unless it is the destination, and the
/// received bytes.
type ReduceBytes = fn(DType, ReduceOp, &mut [u8], Option<&[u8]>, &[u8]);

/// A reduction of received bytes.
#[derive(Clone, Copy)]
pub struct Reduction {
    dtype: DType,
    op: ReduceOp,
    reduce: ReduceBytes,
}

impl Reduction {
    #[cfg(test)]
    pub fn with(reduce: ReduceBytes) -> Self {
        Self { dtype: DType::U8, op: ReduceOp::Sum, reduce }
    }
}

fn reduce_bytes(
    dtype: DType,
    op: ReduceOp,
    into: &mut [u8],
    operand: Option<&[u8]>,
    received: &[u8],
) {
    match operand {
        Some(operand) => reduce_pair(dtype, op, into, operand, received),
        None => reduce(dtype, op, into, received),
    }
}

/// The destination of a posted receive.
#[derive(Clone, Copy)]
pub struct UserBuffer {
    start: *mut u8,
    length: usize,
    /// Bytes are copied if there is none.
    reduction: Option<Reduction>,
    /// The other operand of the reduction, if it is not the destination itself; `length` bytes.
    operand: Option<*const u8>,
}

// SAFETY: a network accesses the memory from one thread at a time; the caller of `post_receive`
// guarantees that it is valid.
unsafe impl Send for UserBuffer {}

impl UserBuffer {
    /// A destination, with the guarantees of [`Transport`](crate::transport::Transport).
    pub fn new(into: *mut [u8], action: RecvAction, operand: Option<*const u8>) -> Self {
        let reduction = match action {
            RecvAction::Copy => None,
            RecvAction::Reduce(dtype, op) => Some(Reduction { dtype, op, reduce: reduce_bytes }),
        };
        Self { start: into.cast(), length: into.len(), reduction, operand }
    }

    #[cfg(test)]
    pub fn with_reduction(self, reduction: Reduction) -> Self {
        Self { reduction: Some(reduction), ..self }
    }

    /// The memory from offset `at` on, if a network may write directly to it.
    pub fn direct(&mut self, at: usize, length: usize) -> Option<&mut [u8]> {
        self.reduction.is_none().then(|| self.slice(at, length))
    }

    /// Copies or reduces payload bytes into the destination at offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let (reduction, operand) = (self.reduction, self.operand(at, bytes.len()));
        let into = self.slice(at, bytes.len());
        match reduction {
            None => into.copy_from_slice(&bytes[..into.len()]),
            Some(Reduction { dtype, op, reduce }) => reduce(dtype, op, into, operand, bytes),
        }
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
