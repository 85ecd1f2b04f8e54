//! Anonymous shared memory, which disappears with the last process that has it open.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{CommError, Result};

/// A memory file.
#[derive(Debug)]
pub struct Segment {
    pub file: OwnedFd,
}

fn system(what: &str) -> impl Fn(Errno) -> CommError + '_ {
    move |why| CommError::system(what, why)
}

impl Segment {
    /// Creates a file that can grow but not shrink, so that mapped pages always exist.
    pub fn create() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("regatta-comm", flags).map_err(system("creating shared memory"))?;
        fcntl_add_seals(&file, SealFlags::SHRINK).map_err(system("sealing shared memory"))?;
        Ok(Self { file })
    }

    /// Grows the file to at least `bytes`.
    pub fn grow(&self, bytes: u64) -> Result {
        // Unlike ftruncate this cannot shrink what another rank has grown concurrently.
        let grown = fallocate(&self.file, FallocateFlags::empty(), bytes.saturating_sub(1), 1);
        grown.map_err(|why| {
            let fix = match why {
                Errno::FBIG => "; raise the limit with `ulimit -f unlimited`",
                _ => "",
            };
            CommError::system("growing shared memory", format!("{why}{fix}"))
        })
    }

    /// Frees the pages of a range, which then reads as zeros; whether that succeeded.
    pub fn punch_hole(&self, start: u64, bytes: u64) -> bool {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, start, bytes).is_ok()
    }

    /// Maps a range.
    pub fn map(&self, start: u64, bytes: usize) -> Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a free address range.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &self.file, start) };
        let start = mapped.map_err(system("mapping shared memory"))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| system("mapping")(Errno::NOMEM))?;
        Ok(Mapping { start, bytes })
    }
}

/// A mapped range.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is not bound to a thread; the protocol rules out data races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address at an offset; panics unless `bytes` bytes are in bounds.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: in bounds.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no address of it is in use.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
