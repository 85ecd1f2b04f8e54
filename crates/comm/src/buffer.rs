//! Owned memory for asynchronous collectives and for collectives on a device.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, madvise};

use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{CommError, Element, Result};

/// A cache line, which is enough for any vector instruction.
const ALIGNMENT: usize = align_of::<CacheLine>();

#[repr(align(64))]
struct CacheLine;

const HUGE_PAGE: usize = 2 << 20;

/// The memory a buffer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySpace {
    /// Host memory.
    Host,
    /// The memory of the device with this index.
    Device(u32),
}

impl std::fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Device(number) => write!(f, "the memory of device {number}"),
        }
    }
}

/// Copies between host and device memory. The implementation keeps the device memory alive.
pub trait DeviceCopy: Send + Sync {
    /// The device index.
    fn device(&self) -> u32;

    /// Copies bytes to the device. Returns when the copy is complete.
    ///
    /// # Safety
    /// `to` must be valid for writes of `from.len()` bytes on the device.
    unsafe fn copy_from_host(&self, to: *mut u8, from: &[u8]) -> Result;

    /// Copies bytes from the device. Returns when the copy is complete.
    ///
    /// # Safety
    /// `from` must be valid for reads of `to.len()` bytes on the device.
    unsafe fn copy_to_host(&self, to: &mut [u8], from: *const u8) -> Result;
}

/// The owner of the memory.
enum Owner {
    Empty,
    Heap,
    External { _owner: Box<dyn Any + Send> },
    Device(Arc<dyn DeviceCopy>),
}

/// Owned bytes, in host memory or on a device.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: it owns its bytes as a Vec does, and its owner is Send.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only allows reading, and `DeviceCopy` is Sync.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes in {})", self.bytes, self.space())
    }
}

impl Buffer {
    /// A zero-initialised buffer on the heap.
    pub fn zeroed(bytes: usize) -> Self {
        if bytes == 0 {
            let start = NonNull::<CacheLine>::dangling().cast();
            return Self { start, bytes, owner: Owner::Empty };
        }
        let layout = layout(bytes);
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        advise_huge_pages(start, bytes);
        // SAFETY: the allocation has this size.
        unsafe { start.write_bytes(0, bytes) };
        Self { start, bytes, owner: Owner::Heap }
    }

    /// A copy of elements.
    pub fn from_slice<T: Element>(elements: &[T]) -> Self {
        let mut buffer = Self::zeroed(size_of_val(elements));
        buffer.as_mut_slice::<T>().copy_from_slice(elements);
        buffer
    }

    /// Memory owned by another object, which is dropped with the buffer.
    ///
    /// # Safety
    /// The bytes must be initialised, aligned to 64, valid while `owner` lives, and not written by
    /// others except as the owner's protocol allows.
    pub unsafe fn from_owner(start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send>) -> Self {
        Self { start, bytes, owner: Owner::External { _owner: owner } }
    }

    /// Device memory.
    ///
    /// # Safety
    /// The bytes must be on the device, valid while `device` lives, and not accessed by others while
    /// a collective uses them.
    pub unsafe fn on_device(start: NonNull<u8>, bytes: usize, device: Arc<dyn DeviceCopy>) -> Self {
        Self { start, bytes, owner: Owner::Device(device) }
    }

    /// A range of device memory, in bytes, which keeps the whole allocation alive. Several calls may
    /// use ranges of one allocation at a time; they must not overlap if one of them is written.
    pub fn device_range(&self, range: Range<usize>) -> Result<Self> {
        let invalid = |what: String| Err(CommError::invalid_call("range of a buffer", what));
        let Owner::Device(device) = &self.owner else {
            return invalid(
                "ranges of host memory would alias; only device memory has them".into(),
            );
        };
        if range.start > range.end || range.end > self.bytes {
            return invalid(format!("{range:?} exceeds a buffer of {} bytes", self.bytes));
        }
        // SAFETY: the offset was checked.
        let start = unsafe { self.start.add(range.start) };
        Ok(Self { start, bytes: range.len(), owner: Owner::Device(device.clone()) })
    }

    /// The memory it is in.
    pub fn space(&self) -> MemorySpace {
        match &self.owner {
            Owner::Device(device) => MemorySpace::Device(device.device()),
            _ => MemorySpace::Host,
        }
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The start address, in host or device memory.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }

    /// The bytes.
    ///
    /// # Panics
    /// If the buffer is in device memory, as do the other accessors; use [`Buffer::copy_to_host`].
    pub fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    /// The bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    /// The elements. A partial element at the end is left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: the bytes are initialised, live as long as `self` and are aligned for any Element,
        // of which every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.host_ptr().as_ptr().cast(), count) }
    }

    /// The elements, mutable.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as above, and access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.host_ptr().as_ptr().cast(), count) }
    }

    /// Copies elements from host memory to the start of the buffer.
    pub fn copy_from_host<T: Element>(&mut self, elements: &[T]) -> Result {
        let bytes = bytes_of(elements);
        self.check_len("copy into a buffer", bytes.len())?;
        match &self.owner {
            // SAFETY: the length was checked.
            Owner::Device(device) => unsafe { device.copy_from_host(self.start.as_ptr(), bytes) },
            _ => {
                self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies elements from the start of the buffer to host memory.
    pub fn copy_to_host<T: Element>(&self, elements: &mut [T]) -> Result {
        let bytes = bytes_of_mut(elements);
        self.check_len("copy from a buffer", bytes.len())?;
        match &self.owner {
            // SAFETY: the length was checked.
            Owner::Device(device) => unsafe { device.copy_to_host(bytes, self.start.as_ptr()) },
            _ => {
                bytes.copy_from_slice(&self.bytes()[..bytes.len()]);
                Ok(())
            }
        }
    }

    /// The address, if it is in host memory.
    fn host_ptr(&self) -> NonNull<u8> {
        let space = self.space();
        let is_host = space == MemorySpace::Host;
        assert!(is_host, "the buffer is in {space}: use Buffer::copy_from_host and copy_to_host");
        self.start
    }

    fn check_len(&self, call: &'static str, bytes: usize) -> Result {
        if bytes <= self.bytes {
            return Ok(());
        }
        let what = format!("the buffer has {} bytes, {bytes} are needed", self.bytes);
        Err(CommError::invalid_call(call, what))
    }
}

/// Large buffers are aligned to a huge page. An impossible size is treated as out of memory.
fn layout(bytes: usize) -> Layout {
    let alignment = if bytes < HUGE_PAGE { ALIGNMENT } else { HUGE_PAGE };
    let wanted = Layout::from_size_align(bytes, alignment);
    wanted.unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

/// Matrix products access memory with large strides and suffer TLB misses with small pages. Only
/// pages completely inside the buffer are advised, so memory use does not grow.
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    let inside = bytes / HUGE_PAGE * HUGE_PAGE;
    if inside > 0 {
        // Best effort: fails on systems without huge pages.
        // SAFETY: a fresh allocation of at least this size.
        let _ = unsafe { madvise(start.as_ptr().cast(), inside, Advice::LinuxHugepage) };
    }
}

impl Default for Buffer {
    /// An empty buffer.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::Heap = self.owner {
            // SAFETY: allocated with the same layout.
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
        buffer.copy_from_host(&[9i32]).unwrap();
        let mut two = [0i32; 2];
        buffer.copy_to_host(&mut two).unwrap();
        assert_eq!(two, [9, -1]);
        let error = buffer.copy_from_host(&[0u8; 13]).unwrap_err().to_string();
        assert_eq!(error, "copy into a buffer: the buffer has 12 bytes, 13 are needed");
    }

    /// A simulated device.
    struct FakeDevice;

    impl DeviceCopy for FakeDevice {
        fn device(&self) -> u32 {
            3
        }

        unsafe fn copy_from_host(&self, _: *mut u8, _: &[u8]) -> Result {
            Ok(())
        }

        unsafe fn copy_to_host(&self, to: &mut [u8], _: *const u8) -> Result {
            to.fill(7);
            Ok(())
        }
    }

    #[test]
    #[should_panic(expected = "is in the memory of device 3")]
    fn device_memory_cannot_be_accessed_directly() {
        // SAFETY: the memory is never accessed.
        let buffer = unsafe { Buffer::on_device(NonNull::dangling(), 8, Arc::new(FakeDevice)) };
        assert_eq!(format!("{buffer:?}"), "Buffer(8 bytes in the memory of device 3)");
        let mut got = [0u8; 2];
        buffer.copy_to_host(&mut got).unwrap();
        assert_eq!(got, [7, 7]);
        let range = buffer.device_range(2..6).unwrap();
        assert_eq!((range.len(), range.space()), (4, MemorySpace::Device(3)));
        assert_eq!(range.address(), buffer.address().map_addr(|at| at.saturating_add(2)));
        let error = buffer.device_range(6..9).unwrap_err().to_string();
        assert_eq!(error, "range of a buffer: 6..9 exceeds a buffer of 8 bytes");
        assert!(Buffer::zeroed(8).device_range(0..4).is_err());
        buffer.bytes();
    }
}
