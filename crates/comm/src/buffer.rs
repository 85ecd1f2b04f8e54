//! Memory for collectives that go on in the background: it belongs to them until they are over.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;

use crate::Element;

/// A whole cache line, and enough for any vector instruction.
const ALIGNMENT: usize = 64;

/// Owned bytes.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    /// Frees it; `None`: it is of the heap.
    owner: Option<Box<dyn Any + Send>>,
}

// SAFETY: it owns its bytes as a Vec does, and its owner is Send.
unsafe impl Send for Buffer {}
// SAFETY: a shared one can only be read.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl Buffer {
    /// Zeros on the heap.
    pub fn zeroed(bytes: usize) -> Self {
        let layout = layout(bytes);
        // SAFETY: the layout has a size other than 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, bytes, owner: None }
    }

    /// A copy of elements.
    pub fn from_slice<T: Element>(elements: &[T]) -> Self {
        let mut buffer = Self::zeroed(size_of_val(elements));
        buffer.as_mut_slice::<T>().copy_from_slice(elements);
        buffer
    }

    /// Memory of somebody else, who frees it when dropped.
    ///
    /// # Safety
    /// The bytes must be initialised, aligned to 64, valid while `owner` lives, and written by
    /// nobody else except as the owner's protocol allows.
    pub unsafe fn from_owner(start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send>) -> Self {
        Self { start, bytes, owner: Some(owner) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they are initialised, and live as long as we.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as before, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Its elements. What does not fill an element is left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: aligned for any Element, of which any bytes are one.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), count) }
    }

    /// Its elements, to be written.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as before, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), count) }
    }
}

/// A size that no machine has is refused as one that there is no memory for.
fn layout(bytes: usize) -> Layout {
    let wanted = Layout::from_size_align(bytes.max(1), ALIGNMENT);
    wanted.unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: it was allocated so.
            unsafe { dealloc(self.start.as_ptr(), layout(self.bytes)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_and_bytes_are_the_same_memory() {
        let mut buffer = Buffer::from_slice(&[1i32, -1, 7]);
        buffer.bytes_mut()[0] = 2;
        assert_eq!(buffer.as_slice::<i32>(), [2, -1, 7]);
        assert_eq!(buffer.as_slice::<f64>().len(), 1);
        assert_eq!(buffer.bytes().as_ptr() as usize % ALIGNMENT, 0);
        assert!(Buffer::zeroed(0).bytes().is_empty());
    }
}
