//! The rings of a recorder: one per thread, so that threads that record at the same time do not wait for
//! each other's cache lines.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use super::raw::RawEvent;
use crate::clock::host_now;

/// The number of rings. Further threads share them.
const RINGS: usize = 1 << RING_BITS;
const RING_BITS: u32 = 4;
/// No ring has been chosen for a thread.
const NONE: usize = usize::MAX;

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The ring of this thread.
    static RING: Cell<usize> = const { Cell::new(NONE) };
}

/// Bounded lock-free queues of events.
#[derive(Debug)]
pub(super) struct Rings {
    rings: [Ring; RINGS],
    capacity: usize,
}

/// The ring of a thread, in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Ring {
    /// Allocated by the first event of a thread.
    queue: OnceLock<ArrayQueue<TimedEvent>>,
    /// Operations that its threads have numbered.
    operations: AtomicU64,
}

/// An event and its time.
#[derive(Debug, Clone, Copy)]
struct TimedEvent {
    time: u64,
    event: RawEvent,
}

impl Rings {
    /// Rings that hold this many events each.
    pub(super) fn new(capacity: usize) -> Self {
        let ring = || Ring { queue: OnceLock::new(), operations: AtomicU64::new(0) };
        Self { rings: std::array::from_fn(|_| ring()), capacity }
    }

    /// Appends an event to the ring of this thread. Returns whether there was room.
    #[inline]
    pub(super) fn push(&self, event: RawEvent) -> bool {
        let time = event.time().unwrap_or_else(host_now);
        let queue = &self.rings[own_ring()].queue;
        let queue = queue.get_or_init(|| ArrayQueue::new(self.capacity));
        queue.push(TimedEvent { time, event }).is_ok()
    }

    /// A number that no other operation has, from [`RINGS`] on. One counter for all threads would move
    /// between their cores.
    #[inline]
    pub(super) fn next_operation(&self) -> u64 {
        let own = own_ring();
        let number = self.rings[own].operations.fetch_add(1, Ordering::Relaxed) + 1;
        number << RING_BITS | own as u64
    }
}

#[inline]
fn own_ring() -> usize {
    RING.with(|ring| {
        if ring.get() == NONE {
            ring.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed) % RINGS);
        }
        ring.get()
    })
}

/// Takes events from all rings in the order of their times.
#[derive(Debug, Default)]
pub(super) struct Merge {
    events: Vec<TimedEvent>,
}

impl Merge {
    /// Moves events from the rings, at most as many as they hold: while events keep coming, the file has
    /// to be written, too. Returns whether a ring may have more.
    pub(super) fn fill(&mut self, rings: &Rings) -> bool {
        let mut more = false;
        for queue in rings.rings.iter().filter_map(|ring| ring.queue.get()) {
            let events = std::iter::from_fn(|| queue.pop()).take(rings.capacity);
            let before = self.events.len();
            self.events.extend(events);
            more |= self.events.len() - before == rings.capacity;
        }
        self.events.sort_by_key(|timed| timed.time);
        more
    }

    /// The events up to a time that was read before [`Self::fill`]. Later ones are kept: an event of
    /// another ring that has to come before them may have been pushed after its ring was emptied.
    pub(super) fn take(&mut self, until: u64) -> impl Iterator<Item = RawEvent> {
        let count = self.events.partition_point(|timed| timed.time <= until);
        self.events.drain(..count).map(|timed| timed.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(communicator: u32) -> RawEvent {
        RawEvent::Close { communicator }
    }

    fn start(operation: u64, time: u64) -> RawEvent {
        RawEvent::Start { operation, time, device_time: 0 }
    }

    #[test]
    fn events_of_all_threads_are_ordered_by_time() {
        let rings = Rings::new(8);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let rings = &rings;
                scope.spawn(move || {
                    for n in 0..5 {
                        assert!(rings.push(start(thread, n * 10 + thread)));
                    }
                });
            }
        });
        let mut merge = Merge::default();
        assert!(!merge.fill(&rings));
        let until = |merge: &mut Merge, time| merge.take(time).map(|e| e.time().unwrap()).collect();
        let first: Vec<u64> = until(&mut merge, 21);
        assert_eq!(first, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21]);
        let rest: Vec<u64> = until(&mut merge, u64::MAX);
        assert_eq!(rest, [22, 23, 30, 31, 32, 33, 40, 41, 42, 43]);
    }

    #[test]
    fn no_two_operations_have_the_same_number() {
        let rings = Rings::new(1);
        let threads = 40;
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let numbers = || (0..100).map(|_| rings.next_operation()).collect::<Vec<_>>();
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(numbers)).collect();
            started.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all[0] > 0);
        all.dedup();
        assert_eq!(all.len(), 100 * threads);
    }

    #[test]
    fn events_beyond_the_capacity_are_refused() {
        let rings = Rings::new(2);
        assert_eq!([1, 2, 3].map(|n| rings.push(close(n))), [true, true, false]);
        let mut merge = Merge::default();
        assert!(merge.fill(&rings), "the ring was full");
        assert_eq!(merge.take(host_now()).collect::<Vec<_>>(), [close(1), close(2)]);
    }

    /// Each cause is pushed before its effect, by another thread.
    #[test]
    fn an_effect_never_comes_before_its_cause() {
        let rings = Rings::new(1 << 16);
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut merge = Merge::default();
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for operation in 0..2000 {
                    assert!(rings.push(start(operation, host_now())));
                    sender.send(operation).unwrap();
                }
                drop(sender);
            });
            let effects = scope.spawn(|| {
                for operation in receiver {
                    let time = host_now();
                    assert!(rings.push(RawEvent::End { operation, time, device_time: 0 }));
                }
            });
            while !effects.is_finished() {
                let until = host_now();
                merge.fill(&rings);
                seen.extend(merge.take(until));
            }
        });
        merge.fill(&rings);
        seen.extend(merge.take(u64::MAX));
        assert_eq!(seen.len(), 4000);
        let mut started = 0;
        for event in seen {
            match event {
                RawEvent::Start { operation, .. } => started = operation + 1,
                RawEvent::End { operation, .. } => assert!(operation < started),
                other => panic!("{other:?}"),
            }
        }
    }
}
