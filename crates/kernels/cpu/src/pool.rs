//! Threads that stay: a piece of work is cut into parts, and whoever is free takes the next one.
//!
//! Which thread does a part is left to chance, so a part's result must not depend on it. How work is
//! cut depends on sizes and the number of threads only: results are the same from run to run.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Looks for work so often before giving way to others: about as long as the operations between two
/// parallel ones take.
const LOOKS: usize = 4_000;

/// Looks so often, giving way each time, before sleeping: who sleeps is woken late, above all in a
/// virtual machine, and a part that a neighbour holds up is often over soon.
const LAST_LOOKS: usize = 2_000;

/// Threads that work together.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by whoever has work done. Others do theirs alone meanwhile.
    caller: Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    /// The number of the job, and in the lower half how many of its parts nobody has taken. Who takes
    /// one thereby knows that the job is still there.
    ticket: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    /// Parts that are not finished.
    unfinished: AtomicUsize,
    end: AtomicBool,
}

struct Job<'a> {
    parts: usize,
    work: &'a (dyn Fn(usize) + Sync),
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Pool {
    /// So many threads, the caller's included.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            unfinished: AtomicUsize::new(0),
            end: AtomicBool::new(false),
        });
        let start = |at: usize| {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("cpu-{at}"));
            // A thread that cannot be had is one less: the others do its work.
            builder.spawn(move || shared.help()).ok()
        };
        let helpers = (1..threads).filter_map(start).collect();
        Self { shared, helpers, caller: Mutex::new(()) }
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Does all parts, and returns when they are done. A part's panic becomes the caller's.
    pub fn run(&self, parts: usize, work: impl Fn(usize) + Sync) {
        let alone = parts <= 1 || self.helpers.is_empty() || parts > u32::MAX as usize;
        match if alone { None } else { self.try_caller() } {
            Some(_held) => self.share(parts, &work),
            None => (0..parts).for_each(work),
        }
    }

    /// Cuts a range into a part for each thread, of at least so many items, in multiples of `unit`.
    pub fn run_ranges(
        &self,
        items: usize,
        least: usize,
        unit: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) {
        let parts = self.parts(items, least);
        self.run(parts, |part| {
            let range = cut(items, parts, part, unit);
            if !range.is_empty() {
                work(range);
            }
        });
    }

    /// How many parts so many items make: one a thread, unless there are too few.
    pub fn parts(&self, items: usize, least: usize) -> usize {
        (items / least.max(1)).clamp(1, self.threads())
    }

    /// The same, but several parts a thread where each still has `much` to do: one that is held up,
    /// by another process or by its core's other half, is left fewer.
    pub fn many_parts(&self, items: usize, least: usize, much: usize) -> usize {
        let most = if self.helpers.is_empty() { 1 } else { 8 * self.threads() };
        self.parts(items, least).max((items / much.max(1)).min(most))
    }

    fn try_caller(&self) -> Option<MutexGuard<'_, ()>> {
        match self.caller.try_lock() {
            Ok(held) => Some(held),
            Err(std::sync::TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    fn share(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        let job = Job { parts, work, caller: std::thread::current(), panic: Mutex::new(None) };
        let shared = &*self.shared;
        shared.unfinished.store(parts, Ordering::Relaxed);
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let number = (shared.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        shared.ticket.store((number << 32) | parts as u64, Ordering::Release);
        for helper in &self.helpers {
            helper.thread().unpark();
        }
        while shared.do_part() {}
        let mut wait = Wait::default();
        while shared.unfinished.load(Ordering::Acquire) != 0 {
            wait.once();
        }
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// How long a thread has looked in vain.
#[derive(Debug, Default)]
struct Wait {
    looks: usize,
}

impl Wait {
    /// A moment; longer ones the longer it lasts, until somebody wakes the thread.
    fn once(&mut self) {
        self.looks += 1;
        if self.looks < LOOKS {
            std::hint::spin_loop();
        } else if self.looks < LOOKS + LAST_LOOKS {
            std::thread::yield_now();
        } else {
            std::thread::park();
            self.looks = 0;
        }
    }
}

impl Shared {
    /// What a helper does all its life.
    fn help(&self) {
        let mut wait = Wait::default();
        while !self.end.load(Ordering::Relaxed) {
            match self.do_part() {
                true => wait = Wait::default(),
                false => wait.once(),
            }
        }
    }

    /// Takes a part and does it; false if there is none.
    fn do_part(&self) -> bool {
        let ticket = self.ticket.load(Ordering::Acquire);
        let job = self.job.load(Ordering::Relaxed);
        let left = ticket & u64::from(u32::MAX);
        let taken = left > 0
            && self
                .ticket
                .compare_exchange(ticket, ticket - 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !taken {
            // Somebody was faster: there may be more.
            return left > 1;
        }
        // SAFETY: the ticket has not changed since the job was read, so it is the ticket's, and its
        // owner waits until this part is finished.
        let job = unsafe { &*job };
        let outcome = catch_unwind(AssertUnwindSafe(|| (job.work)(job.parts - left as usize)));
        if let Err(panic) = outcome {
            *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        // The job may be gone as soon as its last part is finished.
        let caller = job.caller.clone();
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            caller.unpark();
        }
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // Panics of parts have reached their callers.
            let _ = helper.join();
        }
    }
}

/// The range of one of several parts, as even as can be in multiples of `unit`.
pub fn cut(items: usize, parts: usize, part: usize, unit: usize) -> Range<usize> {
    let units = items.div_ceil(unit.max(1));
    let at = |part: usize| (units * part / parts.max(1) * unit.max(1)).min(items);
    at(part)..at(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_part_is_done_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for parts in [0, 1, 2, 5, 100] {
                let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(parts, |part| {
                        counts[part].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 50));
            }
        }
    }

    #[test]
    fn helpers_that_sleep_wake_up() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            let both = std::sync::Barrier::new(2);
            // Neither part ends without the other.
            pool.run(2, |_| {
                both.wait();
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..6 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(6, |part| assert_ne!(part, bad, "part {part}"));
            }));
            assert!(outcome.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(4, |part| {
            sum.fetch_add(part, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }

    #[test]
    fn work_within_work_and_of_several_callers_is_done() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        let add = |part: usize| {
            sum.fetch_add(part, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| pool.run(3, |_| pool.run(3, add))));
            }
        });
        assert_eq!(sum.into_inner(), 3 * 100 * 3 * 3);
    }

    #[test]
    fn cuts_are_even_and_leave_nothing_out() {
        for (items, parts, unit) in [(0, 2, 1), (10, 3, 1), (65, 2, 16), (5, 4, 16), (33, 3, 8)] {
            let ranges: Vec<_> = (0..parts).map(|part| cut(items, parts, part, unit)).collect();
            assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, items));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(ranges.iter().all(|range| range.len() <= items.div_ceil(parts) + unit));
        }
    }
}
