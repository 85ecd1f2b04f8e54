//! Shared memory that has no name, so that none can be left behind: it is gone with the last rank
//! that has it, however that ended.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::CommError;

/// A file of memory.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
}

fn system(what: &str) -> impl Fn(Errno) -> CommError + '_ {
    move |why| CommError::System { what: what.to_owned(), why: why.to_string() }
}

impl Segment {
    /// A new one, which can grow but never shrink: nobody can be made to read what is not there.
    pub fn create() -> Result<Self, CommError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("regatta-comm", flags).map_err(system("making shared memory"))?;
        fcntl_add_seals(&file, SealFlags::SHRINK).map_err(system("sealing shared memory"))?;
        Ok(Self { file })
    }

    /// One that another rank made.
    pub fn received(file: OwnedFd) -> Self {
        Self { file }
    }

    /// The file, to be given to others.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Makes it at least so long.
    pub fn grow(&self, bytes: u64) -> Result<(), CommError> {
        // Unlike a truncation this cannot shrink what another has grown meanwhile.
        fallocate(&self.file, FallocateFlags::empty(), bytes.saturating_sub(1), 1)
            .map_err(system("growing shared memory"))
    }

    /// Frees what is in a range: there are zeros then. Where it cannot, it is freed with the file.
    pub fn free(&self, start: u64, bytes: u64) -> bool {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, start, bytes).is_ok()
    }

    /// Makes a range of it memory of this process.
    pub fn map(&self, start: u64, bytes: usize) -> Result<Mapping, CommError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a place where nothing is.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &self.file, start) };
        let start = mapped.map_err(system("mapping shared memory"))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| system("mapping")(Errno::NOMEM))?;
        Ok(Mapping { start, bytes })
    }

    /// Shows that this rank lives: the lock goes with the process, and not to its children.
    pub fn show_life(&self, rank: u32) -> Result<(), CommError> {
        let done = self.lock(libc::F_SETLK, rank);
        done.map(drop).map_err(system("locking shared memory"))
    }

    /// Whether the process of a rank, which is another than this, lives.
    pub fn lives(&self, rank: u32) -> bool {
        // If it cannot be known, it does: better late than wrong.
        self.lock(libc::F_GETLK, rank) != Ok(libc::F_UNLCK)
    }

    fn lock(&self, command: i32, rank: u32) -> Result<i32, Errno> {
        // SAFETY: zeros are a lock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = i64::from(rank);
        lock.l_len = 1;
        // SAFETY: the file is open, and the lock lives as long as the call.
        let done = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        match done {
            0 => Ok(lock.l_type.into()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

/// Shared memory at an address.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory like any other; who may read and write what is the protocol's business.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address of `bytes` bytes at an offset, which must all be in it.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: it is inside.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has its address any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
