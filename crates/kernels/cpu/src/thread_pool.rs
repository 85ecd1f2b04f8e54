//! A thread pool for fork-join parallelism: a job is split into tasks, and idle threads claim them.
//!
//! Which thread runs a task is not deterministic, so results must not depend on it. How work is split
//! depends only on sizes and on the number of threads, so results are reproducible.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Fewer elements than this are processed before another thread wakes up.
pub const MIN_ELEMENTS_PER_THREAD: usize = 8 * 1024;

/// Polls with a pause in between: about as long as the operations between two parallel ones take.
const SPINS: usize = 4_000;

/// Polls with a yield in between before parking. Waking a parked thread is slow, above all in a virtual
/// machine, and a task delayed by another process often ends soon.
const YIELDS: usize = 2_000;

/// Elements that take a few tens of microseconds, of which a thread may have several ranges.
const BALANCED_RANGE: usize = 64 * 1024;

/// Tasks per thread, at most, where tasks are large enough.
const MAX_TASKS_PER_THREAD: usize = 8;

/// A pool of threads.
#[derive(Debug)]
pub struct ThreadPool {
    state: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs. Other callers meanwhile run theirs on their own thread.
    caller: Mutex<()>,
}

#[derive(Debug)]
struct PoolState {
    /// Sequence number of the job, and in the low half the number of its unclaimed tasks. A thread that
    /// claims a task by compare-and-swap thereby knows that the job still exists.
    ticket: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    unfinished_tasks: AtomicUsize,
    shutdown: AtomicBool,
}

struct Job<'a> {
    tasks: usize,
    work: &'a (dyn Fn(usize) + Sync),
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller's included.
    pub fn new(threads: usize) -> Self {
        let state = Arc::new(PoolState {
            ticket: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            unfinished_tasks: AtomicUsize::new(0),
            shutdown: AtomicBool::new(false),
        });
        let spawn = |at: usize| {
            let state = state.clone();
            let builder = std::thread::Builder::new().name(format!("cpu-{at}"));
            // Without a thread that cannot be spawned, the others do its work.
            builder.spawn(move || state.worker_loop()).ok()
        };
        let workers = (1..threads).filter_map(spawn).collect();
        Self { state, workers, caller: Mutex::new(()) }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs all tasks and returns when they are done. Propagates a task's panic.
    pub fn run(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        let serial = tasks <= 1 || self.workers.is_empty() || tasks > u32::MAX as usize;
        match if serial { None } else { self.try_lock_caller() } {
            Some(_guard) => self.run_parallel(tasks, &work),
            None => (0..tasks).for_each(work),
        }
    }

    /// Splits `items` into one range per thread, each of at least `min_items` and a multiple of `unit`.
    pub fn run_ranges(
        &self,
        items: usize,
        min_items: usize,
        unit: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) {
        self.run_split(items, self.tasks(items, min_items), unit, work);
    }

    /// As [`Self::run_ranges`], with several ranges per thread if there are many items. For work whose result
    /// does not depend on the ranges.
    pub fn run_balanced(
        &self,
        items: usize,
        min_items: usize,
        unit: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) {
        let tasks = self.balanced_tasks(items, min_items, BALANCED_RANGE.max(min_items));
        self.run_split(items, tasks, unit, work);
    }

    /// Runs a task for each range that is not empty.
    pub fn run_split(
        &self,
        items: usize,
        tasks: usize,
        unit: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) {
        self.run(tasks, |task| {
            let range = task_range(items, tasks, task, unit);
            if !range.is_empty() {
                work(range);
            }
        });
    }

    /// Number of tasks for `items`: one per thread, unless a task would have fewer than `min_items`.
    pub fn tasks(&self, items: usize, min_items: usize) -> usize {
        (items / min_items.max(1)).clamp(1, self.threads())
    }

    /// As [`Self::tasks`], but several per thread where each has at least `balance_items`, to balance load
    /// when a thread is delayed by another process or by its core's other hyperthread.
    pub fn balanced_tasks(&self, items: usize, min_items: usize, balance_items: usize) -> usize {
        let max = if self.workers.is_empty() { 1 } else { MAX_TASKS_PER_THREAD * self.threads() };
        self.tasks(items, min_items).max((items / balance_items.max(1)).min(max))
    }

    fn try_lock_caller(&self) -> Option<MutexGuard<'_, ()>> {
        match self.caller.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    fn run_parallel(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        let job = Job { tasks, work, caller: std::thread::current(), panic: Mutex::new(None) };
        let state = &*self.state;
        state.unfinished_tasks.store(tasks, Ordering::Relaxed);
        state.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let sequence = (state.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        state.ticket.store((sequence << 32) | tasks as u64, Ordering::Release);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        while state.run_task() {}
        let mut wait = SpinWait::default();
        while state.unfinished_tasks.load(Ordering::Acquire) != 0 {
            wait.wait();
        }
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Backoff of a polling thread.
#[derive(Debug, Default)]
struct SpinWait {
    polls: usize,
}

impl SpinWait {
    /// Spins, then yields, then parks until unparked.
    fn wait(&mut self) {
        self.polls += 1;
        if self.polls < SPINS {
            std::hint::spin_loop();
        } else if self.polls < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::park();
            self.polls = 0;
        }
    }
}

impl PoolState {
    fn worker_loop(&self) {
        let mut wait = SpinWait::default();
        while !self.shutdown.load(Ordering::Relaxed) {
            match self.run_task() {
                true => wait = SpinWait::default(),
                false => wait.wait(),
            }
        }
    }

    /// Claims a task and runs it. False if there is none.
    fn run_task(&self) -> bool {
        let ticket = self.ticket.load(Ordering::Acquire);
        let job = self.job.load(Ordering::Relaxed);
        let unclaimed = ticket & u64::from(u32::MAX);
        let claimed = unclaimed > 0
            && self
                .ticket
                .compare_exchange(ticket, ticket - 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !claimed {
            // Another thread was faster; there may be more.
            return unclaimed > 1;
        }
        // SAFETY: the ticket has not changed since the job was read, so the job belongs to it, and its
        // caller waits until this task is finished.
        let job = unsafe { &*job };
        let result = catch_unwind(AssertUnwindSafe(|| (job.work)(job.tasks - unclaimed as usize)));
        if let Err(panic) = result {
            *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        // The job may be freed as soon as its last task is finished.
        let caller = job.caller.clone();
        if self.unfinished_tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            caller.unpark();
        }
        true
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.state.shutdown.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Panics of tasks were propagated to their callers.
            let _ = worker.join();
        }
    }
}

/// The range of one of several tasks: of nearly equal length, in multiples of `unit`.
pub fn task_range(items: usize, tasks: usize, task: usize, unit: usize) -> Range<usize> {
    let units = items.div_ceil(unit.max(1));
    let start = |task: usize| (units * task / tasks.max(1) * unit.max(1)).min(items);
    start(task)..start(task + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 7] {
            let pool = ThreadPool::new(threads);
            for tasks in [0, 1, 2, 5, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(tasks, |task| {
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 50));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let pool = ThreadPool::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            let barrier = std::sync::Barrier::new(2);
            // Neither task ends without the other.
            pool.run(2, |_| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn panics_propagate_and_the_pool_stays_usable() {
        let pool = ThreadPool::new(3);
        for bad in 0..6 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(6, |task| assert_ne!(task, bad, "task {task}"));
            }));
            assert!(result.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(4, |task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }

    #[test]
    fn nested_and_concurrent_jobs_run() {
        let pool = ThreadPool::new(2);
        let sum = AtomicUsize::new(0);
        let add = |task: usize| {
            sum.fetch_add(task, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| pool.run(3, |_| pool.run(3, add))));
            }
        });
        assert_eq!(sum.into_inner(), 3 * 100 * 3 * 3);
    }

    #[test]
    fn many_items_have_several_ranges_per_thread() {
        let pool = ThreadPool::new(2);
        for (items, min_ranges) in [(100, 1), (4 * BALANCED_RANGE, 4), (1 << 24, 16)] {
            let ranges = Mutex::new(Vec::new());
            pool.run_balanced(items, 1000, 16, |range| ranges.lock().unwrap().push(range));
            let mut ranges = ranges.into_inner().unwrap();
            ranges.sort_by_key(|range| range.start);
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, items));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(ranges.len(), min_ranges);
        }
    }

    #[test]
    fn task_ranges_are_even_and_cover_all_items() {
        for (items, tasks, unit) in [(0, 2, 1), (10, 3, 1), (65, 2, 16), (5, 4, 16), (33, 3, 8)] {
            let ranges: Vec<_> = (0..tasks).map(|at| task_range(items, tasks, at, unit)).collect();
            assert_eq!((ranges[0].start, ranges[tasks - 1].end), (0, items));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(ranges.iter().all(|range| range.len() <= items.div_ceil(tasks) + unit));
        }
    }
}
