//! The page cache, which a read must not come from.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use rustix::fs::Advice;

/// A share of pages that is too small to matter.
const FEW: f64 = 0.01;

/// Has the kernel forget the pages of a file; the share of them that it keeps. Where nobody knows
/// it is all of them.
pub(super) fn drop_pages(file: &File, bytes: u64) -> f64 {
    // A file system that does not listen shows in what it keeps.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    kept(file, bytes).unwrap_or(1.0)
}

/// What to say of a read of which this share may have come from the cache.
pub(super) fn note(kept: f64) -> Option<String> {
    let percent = (kept * 100.0).round();
    (kept > FEW).then(|| {
        format!("may be cached: {percent} % of it could not be dropped from this node's memory")
    })
}

/// The share of a file's pages that are in memory.
fn kept(file: &File, bytes: u64) -> Option<f64> {
    // SAFETY: the function only answers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0 && page > 0)?;
    let mut pages = vec![0u8; bytes.div_ceil(page)];
    // SAFETY: a new mapping, at an address that the kernel chooses; it is not read.
    let start = unsafe {
        libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping has so many bytes, and there is a place for the answer to each page.
    let code = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr().cast()) };
    // SAFETY: it is the mapping made above.
    unsafe { libc::munmap(start, bytes) };
    let there = pages.iter().filter(|page| **page & 1 == 1).count();
    (code == 0).then(|| there as f64 / pages.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_cached_is_said() {
        assert_eq!(note(0.0), None);
        assert!(note(0.5).is_some_and(|note| note.contains("cached: 50 %")));
    }

    #[test]
    fn what_is_not_a_file_may_be_cached() {
        assert_eq!(drop_pages(&File::open("/dev/null").unwrap(), 4096), 1.0);
    }

    #[test]
    fn pages_that_are_in_memory_are_counted() {
        use std::io::Write;
        // Of a file in memory, what was written is there, and what was not is not.
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::memfd_create("regatta-test", flags).unwrap());
        file.write_all(&vec![1; 1 << 20]).unwrap();
        assert_eq!(kept(&file, 1 << 20), Some(1.0));
        file.set_len(2 << 20).unwrap();
        assert_eq!(kept(&file, 2 << 20), Some(0.5));
    }
}
