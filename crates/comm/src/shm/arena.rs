//! Buffers that all ranks map, for reductions without copies. Each rank has a large sparse range of
//! the file; pages exist once they are used.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed};
use rustix::process::{Resource, getrlimit};

use super::layout::PAGE_BYTES;
use super::segment::{Mapping, Segment};
use crate::buffer::Buffer;

/// Address range per rank.
const ARENA_BYTES: usize = 64 << 30;

/// The ranges of all ranks.
#[derive(Debug)]
pub struct Arena {
    map: Mapping,
    segment: Arc<Segment>,
    start: u64,
    /// This rank in the root communicator.
    rank: usize,
    allocations: Mutex<Allocations>,
}

/// Allocated offsets of the own range with their lengths, and free offsets with theirs.
#[derive(Debug)]
struct Allocations {
    allocated: BTreeMap<usize, usize>,
    free: BTreeMap<usize, usize>,
}

/// Size of the arena for `ranks` ranks; 0 if the file size is limited.
pub fn bytes(ranks: usize) -> usize {
    if getrlimit(Resource::Fsize).current.is_some() { 0 } else { ranks * ARENA_BYTES }
}

impl Arena {
    /// Maps the ranges of all ranks; `None` if the address space does not suffice.
    pub fn open(segment: Arc<Segment>, start: u64, ranks: usize, rank: usize) -> Option<Arc<Self>> {
        let bytes = Some(bytes(ranks)).filter(|bytes| *bytes > 0)?;
        let map = segment.map(start, bytes).ok()?;
        let all = map.at(0, bytes).cast::<c_void>();
        // SAFETY: the range was just mapped. Core dumps would otherwise contain the arenas of all
        // ranks.
        let _ = unsafe { madvise(all, bytes, Advice::LinuxDontDump) };
        let free = BTreeMap::from([(0, ARENA_BYTES)]);
        let allocations = Mutex::new(Allocations { allocated: BTreeMap::new(), free });
        Some(Arc::new(Self { map, segment, start, rank, allocations }))
    }

    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A zeroed buffer; on the heap if the arena is full.
    pub fn buffer(self: &Arc<Self>, bytes: usize) -> Buffer {
        let Some(at) = self.allocations().allocate(bytes) else { return Buffer::zeroed(bytes) };
        let start = self.map.at(self.rank * ARENA_BYTES + at, bytes);
        let Some(start) = NonNull::new(start) else { return Buffer::zeroed(bytes) };
        let owner: Box<dyn Any + Send> = Box::new(ArenaAllocation { arena: self.clone(), at });
        // SAFETY: the allocation is exclusive, page-aligned and zero (never written, or punched
        // out). Other ranks write it only in a collective on this buffer.
        unsafe { Buffer::from_owner(start, bytes, owner) }
    }

    /// The offset of these bytes in the own range, if they are in an allocated buffer.
    pub fn find(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let own = self.map.at(self.rank * ARENA_BYTES, ARENA_BYTES) as usize;
        let at = (start as usize).checked_sub(own)?;
        let allocations = self.allocations();
        let (start, length) = allocations.allocated.range(..=at).next_back()?;
        (at.checked_add(bytes)? <= start + length).then_some(at)
    }

    /// [`Self::find`] for exactly one whole buffer, so that no other buffer can overlap it.
    pub fn find_exact(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let at = self.find(start, bytes)?;
        (self.allocations().allocated.get(&at) == Some(&bytes)).then_some(at)
    }

    /// The address of bytes in a rank's range; `None` if they are out of range.
    pub fn at(&self, rank: usize, at: usize, bytes: usize) -> Option<*mut u8> {
        let inside = at.checked_add(bytes).is_some_and(|end| end <= ARENA_BYTES);
        inside.then(|| self.map.at(rank * ARENA_BYTES + at, bytes))
    }

    /// Makes a buffer private, at the same address: after a failed collective other ranks may still
    /// write to the shared pages.
    pub fn detach(&self, at: usize, bytes: usize) {
        let padded = bytes.next_multiple_of(PAGE_BYTES);
        let old = self.map.at(self.rank * ARENA_BYTES + at, padded);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the copy has the length of the allocation, which the caller owns, and then
        // replaces it atomically at the same address.
        let moved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), padded, access, MapFlags::PRIVATE).and_then(
                |new| {
                    std::ptr::copy_nonoverlapping(old, new.cast(), padded);
                    mremap_fixed(new, padded, padded, MremapFlags::MAYMOVE, old.cast())
                },
            )
        };
        if moved.is_ok() {
            // The shared range is never reused.
            self.allocations().allocated.remove(&at);
        }
    }
}

impl Allocations {
    /// First-fit allocation.
    fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let padded = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let (&at, &available) = self.free.iter().find(|(_, available)| **available >= padded)?;
        self.free.remove(&at);
        if available > padded {
            self.free.insert(at + padded, available - padded);
        }
        self.allocated.insert(at, bytes);
        Some(at)
    }

    /// Frees a range and merges it with adjacent free ranges.
    fn release(&mut self, at: usize, padded: usize) {
        let mut range = (at, padded);
        if let Some(following) = self.free.remove(&(at + padded)) {
            range.1 += following;
        }
        if let Some((&before, &bytes)) = self.free.range(..at).next_back()
            && before + bytes == at
        {
            self.free.remove(&before);
            range = (before, bytes + range.1);
        }
        self.free.insert(range.0, range.1);
    }
}

/// Frees a buffer's range when dropped.
struct ArenaAllocation {
    arena: Arc<Arena>,
    at: usize,
}

impl Drop for ArenaAllocation {
    fn drop(&mut self) {
        let mut allocations = self.arena.allocations();
        let Some(bytes) = allocations.allocated.remove(&self.at) else { return };
        let padded = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let offset = self.arena.start + (self.arena.rank * ARENA_BYTES + self.at) as u64;
        // The next allocation must be zero. If the hole cannot be punched, the range is not reused.
        if self.arena.segment.punch_hole(offset, padded as u64) {
            allocations.release(self.at, padded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_are_merged() {
        let mut allocations =
            Allocations { allocated: BTreeMap::new(), free: BTreeMap::from([(0, 8 * PAGE_BYTES)]) };
        let all: Vec<usize> = (0..4).filter_map(|_| allocations.allocate(PAGE_BYTES + 1)).collect();
        assert_eq!(all, [0, 2, 4, 6].map(|page| page * PAGE_BYTES));
        assert_eq!(allocations.allocate(1), None);
        for at in [2, 6, 4, 0] {
            allocations.release(at * PAGE_BYTES, 2 * PAGE_BYTES);
        }
        assert_eq!(allocations.free, BTreeMap::from([(0, 8 * PAGE_BYTES)]));
    }

    #[test]
    fn detached_buffer_keeps_its_data_and_is_private() {
        let segment = Arc::new(Segment::create().unwrap());
        segment.grow(2 * ARENA_BYTES as u64).unwrap();
        let Some(ours) = Arena::open(segment.clone(), 0, 2, 0) else {
            assert_eq!(bytes(2), 0, "the arena is unavailable without a limit on the file size");
            return;
        };
        let theirs = Arena::open(segment, 0, 2, 1).unwrap();
        let mut buffer = ours.buffer(5000);
        buffer.bytes_mut().fill(7);
        let at = ours.find_exact(buffer.bytes().as_ptr(), 5000).unwrap();
        assert_eq!(ours.find_exact(buffer.bytes().as_ptr(), 4999), None);
        let seen = theirs.at(0, at, 1).unwrap();
        // SAFETY: it is mapped and not written concurrently.
        assert_eq!(unsafe { *seen }, 7);
        ours.detach(at, 5000);
        // SAFETY: as above.
        unsafe { *seen = 9 };
        assert!(buffer.bytes().iter().all(|b| *b == 7));
        assert_eq!(ours.find_exact(buffer.bytes().as_ptr(), 5000), None);
        drop(buffer);
        assert!(ours.buffer(9000).bytes().iter().all(|b| *b == 0));
    }
}
