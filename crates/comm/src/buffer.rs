//! Memory for collectives that go on in the background, or on a device: it belongs to them until they
//! are over.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;

use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{CommError, Element};

/// A whole cache line, and enough for any vector instruction.
const ALIGNMENT: usize = align_of::<Line>();

/// Nothing but its alignment.
#[repr(align(64))]
struct Line;

/// What Linux calls a huge page.
const LARGE_PAGE: usize = 2 << 20;

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Where the processor reaches it.
    Host,
    /// On the device of this number.
    Device(u32),
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Device(number) => write!(f, "the memory of device {number}"),
        }
    }
}

/// How memory of a device is reached from the host. Whoever implements it keeps the memory alive.
pub trait Reach: Send + Sync {
    /// Which device.
    fn device(&self) -> u32;

    /// Copies bytes to the device, and returns when they are there.
    ///
    /// # Safety
    /// There must be room for them.
    unsafe fn put(&self, to: *mut u8, from: &[u8]) -> Result<(), CommError>;

    /// Copies bytes from the device, and returns when they are here.
    ///
    /// # Safety
    /// They must be there.
    unsafe fn fetch(&self, to: &mut [u8], from: *const u8) -> Result<(), CommError>;
}

/// Who frees the memory.
enum Owner {
    Nobody,
    Heap,
    Somebody { _frees: Box<dyn Any + Send> },
    Device(Box<dyn Reach>),
}

/// Owned bytes, in host memory or on a device.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: it owns its bytes as a Vec does, and its owner is Send.
unsafe impl Send for Buffer {}
// SAFETY: a shared one can only be read, and whoever reaches a device is Sync.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes in {})", self.bytes, self.space())
    }
}

impl Buffer {
    /// Zeros on the heap.
    pub fn zeroed(bytes: usize) -> Self {
        if bytes == 0 {
            let nowhere = NonNull::<Line>::dangling().cast();
            return Self { start: nowhere, bytes, owner: Owner::Nobody };
        }
        let layout = layout(bytes);
        // SAFETY: the layout has a size other than 0.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        ask_for_large_pages(start, bytes);
        // SAFETY: there is room for so many.
        unsafe { start.write_bytes(0, bytes) };
        Self { start, bytes, owner: Owner::Heap }
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
        Self { start, bytes, owner: Owner::Somebody { _frees: owner } }
    }

    /// Memory of a device.
    ///
    /// # Safety
    /// The bytes must be on that device, valid while `reach` lives, and until the buffer is dropped
    /// used by nobody else while a collective has it.
    pub unsafe fn on_device(start: NonNull<u8>, bytes: usize, reach: Box<dyn Reach>) -> Self {
        Self { start, bytes, owner: Owner::Device(reach) }
    }

    /// Where it lies.
    pub fn space(&self) -> Space {
        match &self.owner {
            Owner::Device(reach) => Space::Device(reach.device()),
            _ => Space::Host,
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where its bytes begin: an address of the host, or of the device.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }

    /// Its bytes.
    ///
    /// # Panics
    /// If it lies on a device, as do the other functions that lend its bytes: see
    /// [`Buffer::fetch`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they are initialised, and live as long as we.
        unsafe { std::slice::from_raw_parts(self.here().as_ptr(), self.bytes) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as before, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.here().as_ptr(), self.bytes) }
    }

    /// Its elements. What does not fill an element is left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: aligned for any Element, of which any bytes are one.
        unsafe { std::slice::from_raw_parts(self.here().as_ptr().cast(), count) }
    }

    /// Its elements, to be written.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as before, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.here().as_ptr().cast(), count) }
    }

    /// Copies elements to its beginning, wherever it lies.
    pub fn put<T: Element>(&mut self, elements: &[T]) -> Result<(), CommError> {
        let bytes = bytes_of(elements);
        self.has("a copy into it", bytes.len())?;
        match &self.owner {
            // SAFETY: there is room for them.
            Owner::Device(reach) => unsafe { reach.put(self.start.as_ptr(), bytes) },
            _ => {
                self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies elements from its beginning, wherever it lies.
    pub fn fetch<T: Element>(&self, elements: &mut [T]) -> Result<(), CommError> {
        let bytes = bytes_of_mut(elements);
        self.has("a copy from it", bytes.len())?;
        match &self.owner {
            // SAFETY: they are there.
            Owner::Device(reach) => unsafe { reach.fetch(bytes, self.start.as_ptr()) },
            _ => {
                bytes.copy_from_slice(&self.bytes()[..bytes.len()]);
                Ok(())
            }
        }
    }

    /// The address, if it is one of the host's.
    fn here(&self) -> NonNull<u8> {
        let space = self.space();
        assert!(space == Space::Host, "the buffer lies in {space}: use Buffer::put and fetch");
        self.start
    }

    fn has(&self, call: &'static str, bytes: usize) -> Result<(), CommError> {
        let what = || format!("it has {} bytes, not {bytes}", self.bytes);
        match bytes <= self.bytes {
            true => Ok(()),
            false => Err(CommError::Shape { call, what: what() }),
        }
    }
}

/// A size that no machine has is refused as one that there is no memory for.
/// Where a large page fits, memory begins with one.
fn layout(bytes: usize) -> Layout {
    let alignment = if bytes < LARGE_PAGE { ALIGNMENT } else { LARGE_PAGE };
    let wanted = Layout::from_size_align(bytes, alignment);
    wanted.unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

/// Matrix products walk through much memory in large steps: with small pages they often wait for
/// the processor to find out where a page is. Only pages that lie inside are asked for, so that
/// there is not more memory than was wanted.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(start: NonNull<u8>, bytes: usize) {
    use rustix::mm::Advice;
    let inside = bytes / LARGE_PAGE * LARGE_PAGE;
    if inside > 0 {
        // A system that has none answers with an error, and nothing is lost.
        // SAFETY: it is memory of ours that nothing is in yet.
        let _ =
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), inside, Advice::LinuxHugepage) };
    }
}

/// Nobody has tried it elsewhere.
#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_start: NonNull<u8>, _bytes: usize) {}

impl Default for Buffer {
    /// No bytes.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::Heap = self.owner {
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
        assert!(Buffer::zeroed(0).is_empty());
        buffer.put(&[9i32]).unwrap();
        let mut two = [0i32; 2];
        buffer.fetch(&mut two).unwrap();
        assert_eq!(two, [9, -1]);
        assert!(buffer.put(&[0u8; 13]).unwrap_err().to_string().contains("it has 12 bytes"));
    }

    /// A device that is none.
    struct Far;

    impl Reach for Far {
        fn device(&self) -> u32 {
            3
        }

        unsafe fn put(&self, _: *mut u8, _: &[u8]) -> Result<(), CommError> {
            Ok(())
        }

        unsafe fn fetch(&self, to: &mut [u8], _: *const u8) -> Result<(), CommError> {
            to.fill(7);
            Ok(())
        }
    }

    #[test]
    #[should_panic(expected = "lies in the memory of device 3")]
    fn memory_of_a_device_is_reached_by_copies_only() {
        // SAFETY: nobody reads or writes there.
        let buffer = unsafe { Buffer::on_device(NonNull::dangling(), 8, Box::new(Far)) };
        assert_eq!(format!("{buffer:?}"), "Buffer(8 bytes in the memory of device 3)");
        let mut got = [0u8; 2];
        buffer.fetch(&mut got).unwrap();
        assert_eq!(got, [7, 7]);
        buffer.bytes();
    }
}
