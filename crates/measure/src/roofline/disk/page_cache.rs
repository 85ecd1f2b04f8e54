//! Drops the page cache so that reads reach the disk.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use rustix::fs::Advice;

/// A fraction of resident pages below this is ignored.
const NEGLIGIBLE: f64 = 0.01;

/// Drops the cached pages of a file; returns the fraction still resident, or 1 if it is unknown.
pub(super) fn drop_pages(file: &File, bytes: u64) -> f64 {
    // A file system that ignores the advice shows in the resident fraction.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    resident(file, bytes).unwrap_or(1.0)
}

/// A note for a read that may be partly cached.
pub(super) fn note(resident: f64) -> Option<String> {
    let percent = (resident * 100.0).round();
    (resident > NEGLIGIBLE).then(|| {
        format!("may be cached: {percent} % of the file could not be dropped from the page cache")
    })
}

/// Fraction of a file's pages in the page cache.
fn resident(file: &File, bytes: u64) -> Option<f64> {
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0 && page > 0)?;
    let mut pages = vec![0u8; bytes.div_ceil(page)];
    // SAFETY: a new mapping at an address chosen by the kernel; it is never read.
    let start = unsafe {
        libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping has `bytes` bytes and `pages` has one entry per page.
    let code = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr().cast()) };
    // SAFETY: unmaps the mapping created above.
    unsafe { libc::munmap(start, bytes) };
    let there = pages.iter().filter(|page| **page & 1 == 1).count();
    (code == 0).then(|| there as f64 / pages.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_are_noted() {
        assert_eq!(note(0.0), None);
        assert!(note(0.5).is_some_and(|note| note.contains("cached: 50 %")));
    }

    #[test]
    fn unmappable_files_count_as_resident() {
        assert_eq!(drop_pages(&File::open("/dev/null").unwrap(), 4096), 1.0);
    }

    #[test]
    fn resident_pages_are_counted() {
        use std::io::Write;
        // A memfd: written pages are resident, holes are not.
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::memfd_create("regatta-test", flags).unwrap());
        file.write_all(&vec![1; 1 << 20]).unwrap();
        assert_eq!(resident(&file, 1 << 20), Some(1.0));
        file.set_len(2 << 20).unwrap();
        assert_eq!(resident(&file, 2 << 20), Some(0.5));
    }
}
