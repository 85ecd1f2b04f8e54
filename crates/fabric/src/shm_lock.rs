//! The lock in a segment of libfabric's shm provider. Up to libfabric 1.17, a process holds the lock of its own
//! segment while it copies messages, and that of a peer's while it posts one. If it is killed meanwhile, the lock
//! stays held, and every process that needs it spins inside the provider for ever.

use std::fs::File;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::shm_cleanup::segment_path;

/// Versions of libfabric whose segments have this lock at this place. Later ones hold it for a few instructions.
const LIBRARIES: RangeInclusive<(u32, u32)> = (1, 15)..=(1, 18);
/// Versions of the segments of these, in the first byte.
const SEGMENTS: RangeInclusive<u8> = 2..=4;
/// Offset of the lock, a `pthread_spinlock_t`.
const LOCK_OFFSET: usize = 24;
/// Bytes of a segment that are mapped.
const MAPPED_BYTES: usize = 4096;

/// The lock of a segment.
pub struct SegmentLock(NonNull<u8>);

// SAFETY: the mapping is owned, and the lock is made for several threads and processes.
unsafe impl Send for SegmentLock {}
// SAFETY: as above.
unsafe impl Sync for SegmentLock {}

impl SegmentLock {
    /// The lock of the segment of an address. `None` if the address is of another provider, or the segment of a
    /// version of libfabric without this lock.
    pub fn map(address: &[u8], library: (u32, u32)) -> Option<Self> {
        LIBRARIES.contains(&library).then_some(())?;
        let file = File::options().read(true).write(true).open(segment_path(address)?).ok()?;
        // Memory beyond the end of the file cannot be accessed.
        (file.metadata().ok()?.len() >= MAPPED_BYTES as u64).then_some(())?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which overlaps no other.
        let start = unsafe {
            mmap(std::ptr::null_mut(), MAPPED_BYTES, protection, MapFlags::SHARED, &file, 0).ok()?
        };
        let segment = Self(NonNull::new(start.cast())?);
        // SAFETY: the first mapped byte.
        let version = unsafe { segment.0.as_ptr().read_volatile() };
        SEGMENTS.contains(&version).then_some(segment)
    }

    fn lock(&self) -> *mut libc::pthread_spinlock_t {
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(LOCK_OFFSET).cast() }
    }

    /// Whether a process holds the lock.
    pub fn is_held(&self) -> bool {
        // SAFETY: an initialised lock of the provider; one that is free is given back at once.
        unsafe {
            libc::pthread_spin_trylock(self.lock()) != 0
                || libc::pthread_spin_unlock(self.lock()) != 0
        }
    }

    /// Acquires the lock, as the provider does.
    #[doc(hidden)]
    pub fn acquire(&self) {
        // SAFETY: an initialised lock of the provider.
        unsafe { libc::pthread_spin_lock(self.lock()) };
    }

    /// Releases the lock in place of a process that has ended.
    pub fn release(&self) {
        // SAFETY: an initialised lock of the provider. Its holder does not exist any more. What it has not
        // completed is not visible: an entry of a queue counts from the update of an index, its last step.
        unsafe { libc::pthread_spin_unlock(self.lock()) };
    }
}

impl Drop for SegmentLock {
    fn drop(&mut self) {
        // SAFETY: the mapping of above, which nothing uses any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), MAPPED_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(process: u32, bytes: &[u8]) -> (String, Vec<u8>) {
        let name = format!("{process}:0:{}", std::process::id());
        std::fs::write(format!("/dev/shm/{name}"), bytes).unwrap();
        (format!("/dev/shm/{name}"), format!("fi_shm://{name}").into_bytes())
    }

    #[test]
    fn a_held_lock_is_released_from_another_mapping() {
        let mut bytes = vec![0u8; 2 * MAPPED_BYTES];
        bytes[0] = 4;
        let (path, address) = segment(900_001, &bytes);
        let [one, other] = [(); 2].map(|()| SegmentLock::map(&address, (1, 17)).unwrap());
        std::fs::remove_file(path).unwrap();
        // SAFETY: initialises a lock that nothing else uses.
        unsafe { libc::pthread_spin_init(one.lock(), libc::PTHREAD_PROCESS_SHARED) };
        assert!(!one.is_held() && !other.is_held());
        one.acquire();
        assert!(one.is_held() && other.is_held());
        other.release();
        assert!(!one.is_held() && !other.is_held());
    }

    #[test]
    fn unknown_segments_are_left_alone() {
        let (path, address) = segment(900_002, &[4; MAPPED_BYTES]);
        assert!(SegmentLock::map(&address, (1, 17)).is_some());
        assert!(SegmentLock::map(&address, (1, 22)).is_none(), "another layout");
        std::fs::write(&path, [9; MAPPED_BYTES]).unwrap();
        assert!(SegmentLock::map(&address, (1, 17)).is_none(), "another version");
        std::fs::write(&path, [4; 100]).unwrap();
        assert!(SegmentLock::map(&address, (1, 17)).is_none(), "too short");
        std::fs::remove_file(&path).unwrap();
        assert!(SegmentLock::map(&address, (1, 17)).is_none(), "no file");
        assert!(SegmentLock::map(b"127.0.0.1:80", (1, 17)).is_none());
    }
}
