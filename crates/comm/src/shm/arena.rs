//! Memory for buffers that the other ranks can read and write, too: what lies there is reduced where
//! it is, without any copy. Every rank has a large range of the file, of which only what is used
//! exists.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed};
use rustix::process::{Resource, getrlimit};

use super::segment::{Mapping, Segment};
use crate::buffer::Buffer;

/// Of each rank.
const ARENA_BYTES: usize = 64 << 30;
const PAGE_BYTES: usize = 4096;

/// The ranges of all ranks.
#[derive(Debug)]
pub struct Arena {
    map: Mapping,
    segment: Arc<Segment>,
    start: u64,
    /// The rank that this is, in the world.
    rank: usize,
    rooms: Mutex<Rooms>,
}

/// What of the own range is taken, and by how many bytes; and what is free behind what.
#[derive(Debug)]
struct Rooms {
    taken: BTreeMap<usize, usize>,
    free: BTreeMap<usize, usize>,
}

/// Bytes of the arenas of so many ranks; none if files may not be of any size.
pub fn bytes(ranks: usize) -> usize {
    if getrlimit(Resource::Fsize).current.is_some() { 0 } else { ranks * ARENA_BYTES }
}

impl Arena {
    /// Maps the ranges of all ranks; `None` if there is no room for them in this process.
    pub fn open(
        segment: &Arc<Segment>,
        start: u64,
        ranks: usize,
        rank: usize,
    ) -> Option<Arc<Self>> {
        let bytes = Some(bytes(ranks)).filter(|bytes| *bytes > 0)?;
        let map = segment.map(start, bytes).ok()?;
        let all = map.at(0, bytes).cast::<c_void>();
        // SAFETY: it is what was just mapped. A core dump would be of all ranks otherwise.
        let _ = unsafe { madvise(all, bytes, Advice::LinuxDontDump) };
        let free = BTreeMap::from([(0, ARENA_BYTES)]);
        let rooms = Mutex::new(Rooms { taken: BTreeMap::new(), free });
        Some(Arc::new(Self { map, segment: segment.clone(), start, rank, rooms }))
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of zeros; on the heap if there is no more room.
    pub fn buffer(self: &Arc<Self>, bytes: usize) -> Buffer {
        let Some(at) = self.rooms().take(bytes) else { return Buffer::zeroed(bytes) };
        let start = self.map.at(self.rank * ARENA_BYTES + at, bytes);
        let Some(start) = NonNull::new(start) else { return Buffer::zeroed(bytes) };
        let owner: Box<dyn Any + Send> = Box::new(Room { arena: self.clone(), at });
        // SAFETY: they are this room's, zeros as all that was never written or freed, and begin a
        // page. Others write them only in a collective that has the buffer.
        unsafe { Buffer::from_owner(start, bytes, owner) }
    }

    /// Where bytes are in the own range, if they are of a buffer there that was not detached.
    pub fn find(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let own = self.map.at(self.rank * ARENA_BYTES, ARENA_BYTES) as usize;
        let at = (start as usize).checked_sub(own)?;
        let rooms = self.rooms();
        let (room, length) = rooms.taken.range(..=at).next_back()?;
        (at.checked_add(bytes)? <= room + length).then_some(at)
    }

    /// The same, if they are all of one buffer, so that nobody else can have bytes between them.
    pub fn find_whole(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let at = self.find(start, bytes)?;
        (self.rooms().taken.get(&at) == Some(&bytes)).then_some(at)
    }

    /// The address of bytes in a rank's range; `None` if they are not inside.
    pub fn at(&self, rank: usize, at: usize, bytes: usize) -> Option<*mut u8> {
        let inside = at.checked_add(bytes).is_some_and(|end| end <= ARENA_BYTES);
        inside.then(|| self.map.at(rank * ARENA_BYTES + at, bytes))
    }

    /// Makes a buffer this rank's alone, where it is: others may still be about to write to it, in a
    /// collective that is over for this rank.
    pub fn detach(&self, at: usize, bytes: usize) {
        let whole = bytes.next_multiple_of(PAGE_BYTES);
        let old = self.map.at(self.rank * ARENA_BYTES + at, whole);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the copy is as long as the room, which the caller has for himself; it then takes
        // the place of what was there, which stays mapped all the time.
        let moved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), whole, access, MapFlags::PRIVATE).and_then(|new| {
                std::ptr::copy_nonoverlapping(old, new.cast(), whole);
                mremap_fixed(new, whole, whole, MremapFlags::MAYMOVE, old.cast())
            })
        };
        if moved.is_ok() {
            // It is never given out again.
            self.rooms().taken.remove(&at);
        }
    }
}

impl Rooms {
    /// Takes the first room that is large enough.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let whole = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let (&at, &room) = self.free.iter().find(|(_, room)| **room >= whole)?;
        self.free.remove(&at);
        if room > whole {
            self.free.insert(at + whole, room - whole);
        }
        self.taken.insert(at, bytes);
        Some(at)
    }

    /// Gives it back, and joins it with what is free around it.
    fn give_back(&mut self, at: usize, whole: usize) {
        let mut room = (at, whole);
        if let Some(behind) = self.free.remove(&(at + whole)) {
            room.1 += behind;
        }
        if let Some((&before, &bytes)) = self.free.range(..at).next_back()
            && before + bytes == at
        {
            self.free.remove(&before);
            room = (before, bytes + room.1);
        }
        self.free.insert(room.0, room.1);
    }
}

/// A buffer's room.
struct Room {
    arena: Arc<Arena>,
    at: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut rooms = self.arena.rooms();
        let Some(bytes) = rooms.taken.remove(&self.at) else { return };
        let whole = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let place = self.arena.start + (self.arena.rank * ARENA_BYTES + self.at) as u64;
        // The next one finds zeros. If it cannot be freed, it is not given out again.
        if self.arena.segment.free(place, whole as u64) {
            rooms.give_back(self.at, whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_given_out_once_and_join_again() {
        let mut rooms =
            Rooms { taken: BTreeMap::new(), free: BTreeMap::from([(0, 8 * PAGE_BYTES)]) };
        let all: Vec<usize> = (0..4).filter_map(|_| rooms.take(PAGE_BYTES + 1)).collect();
        assert_eq!(all, [0, 2, 4, 6].map(|page| page * PAGE_BYTES));
        assert_eq!(rooms.take(1), None);
        for at in [2, 6, 4, 0] {
            rooms.give_back(at * PAGE_BYTES, 2 * PAGE_BYTES);
        }
        assert_eq!(rooms.free, BTreeMap::from([(0, 8 * PAGE_BYTES)]));
    }

    #[test]
    fn what_is_detached_keeps_its_bytes_and_nobody_else_sees_it() {
        let segment = Arc::new(Segment::create().unwrap());
        segment.grow(2 * ARENA_BYTES as u64).unwrap();
        let Some(ours) = Arena::open(&segment, 0, 2, 0) else { return };
        let theirs = Arena::open(&segment, 0, 2, 1).unwrap();
        let mut buffer = ours.buffer(5000);
        buffer.bytes_mut().fill(7);
        let at = ours.find_whole(buffer.bytes().as_ptr(), 5000).unwrap();
        assert_eq!(ours.find_whole(buffer.bytes().as_ptr(), 4999), None);
        let seen = theirs.at(0, at, 1).unwrap();
        // SAFETY: it is mapped, and nobody writes it meanwhile.
        assert_eq!(unsafe { *seen }, 7);
        ours.detach(at, 5000);
        // SAFETY: the same.
        unsafe { *seen = 9 };
        assert!(buffer.bytes().iter().all(|b| *b == 7));
        assert_eq!(ours.find_whole(buffer.bytes().as_ptr(), 5000), None);
        drop(buffer);
        assert!(ours.buffer(9000).bytes().iter().all(|b| *b == 0));
    }
}
