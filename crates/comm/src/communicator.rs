//! [`Communicator`] implements [`Comm`] on top of an [`Engine`]. Calls run in the order they were
//! issued, on the calling thread or on a worker thread of the communicator.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, current};
use std::time::Duration;

use crate::buffer::Buffer;
use crate::comm::{SharedCalls, no_device};
use crate::control::CommMonitor;
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, HasFailedFn, OnStreamFn};
use crate::error::Peer;
use crate::event::CompleteOnDrop;
use crate::locks::lock;
use crate::recording;
use crate::transports::Transports;
use crate::{Call, CallKind, Comm, CommError, Counts, DType, Event, OwnedCall, Pending, Result};

/// How often the worker thread checks calls in flight on a device stream. A host thread that waits
/// for a stream of its own depends on these checks, because only an abort ends work that waits for a
/// lost rank.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// A communicator on top of an engine, with a worker thread for asynchronous calls.
pub struct Communicator {
    rank: u32,
    peers: Vec<Peer>,
    allocator: Allocator,
    /// Which calls run on a device stream.
    on_stream: Option<OnStreamFn>,
    monitor: Option<Arc<CommMonitor>>,
    transports: Transports,
    shared: Arc<WorkerState>,
}

struct WorkerState {
    engine: Mutex<BoxEngine>,
    abort: AbortFn,
    has_failed: HasFailedFn,
    /// The error after a panic in a call, which may have left the engine inconsistent.
    panicked: OnceLock<CommError>,
    tickets: TicketQueue,
    /// Whether calls are in flight on a device stream. Changed only with the engine locked.
    in_flight: AtomicBool,
    jobs: Mutex<Jobs>,
    job_added: Condvar,
}

/// A ticket lock: calls run in the order in which they took their tickets.
#[derive(Default)]
struct TicketQueue {
    /// The number of outstanding tickets.
    outstanding: AtomicU64,
    turns: Mutex<Turns>,
    advanced: Condvar,
}

#[derive(Default)]
struct Turns {
    /// The next ticket to be issued.
    next: u64,
    /// The ticket being served.
    serving: u64,
    /// The number of waiting threads. Notifying without any would cost a system call.
    waiting: usize,
}

/// Calls for the worker thread.
struct Job {
    ticket: u64,
    calls: SharedCalls,
    after: Vec<Event>,
    completion: CompleteOnDrop,
}

/// The work of the worker thread.
#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    /// The worker thread, spawned on first use.
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

impl TicketQueue {
    /// Takes a ticket.
    fn take(&self) -> u64 {
        let mut turns = lock(&self.turns);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        turns.next += 1;
        turns.next - 1
    }

    /// Waits until a ticket is served.
    fn wait(&self, ticket: u64) {
        let mut turns = lock(&self.turns);
        while turns.serving != ticket {
            turns.waiting += 1;
            turns = self.advanced.wait(turns).unwrap_or_else(PoisonError::into_inner);
            turns.waiting -= 1;
        }
    }

    /// Serves the next ticket.
    fn advance(&self) {
        let mut turns = lock(&self.turns);
        turns.serving += 1;
        self.outstanding.fetch_sub(1, Ordering::Release);
        let notify = turns.waiting > 0;
        drop(turns);
        if notify {
            self.advanced.notify_all();
        }
    }
}

/// The text of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown cause")
}

/// Advances the queue when dropped, also on panic.
struct AdvanceOnDrop<'a>(&'a TicketQueue);

impl Drop for AdvanceOnDrop<'_> {
    fn drop(&mut self) {
        self.0.advance();
    }
}

impl WorkerState {
    /// Runs `work` when the ticket is served.
    fn in_turn<R>(
        &self,
        ticket: u64,
        work: impl FnOnce(&mut dyn Engine) -> Result<R>,
    ) -> Result<R> {
        self.tickets.wait(ticket);
        let _advance = AdvanceOnDrop(&self.tickets);
        self.run_caught(lock(&self.engine).as_mut(), work)
    }

    /// Runs `work`. A panic becomes an error and aborts the communicator on all ranks: they wait for
    /// messages that this rank will never send.
    fn run_caught<R>(
        &self,
        engine: &mut dyn Engine,
        work: impl FnOnce(&mut dyn Engine) -> Result<R>,
    ) -> Result<R> {
        if let Some(error) = self.panicked.get() {
            return Err(error.clone());
        }
        catch_unwind(AssertUnwindSafe(|| work(engine))).unwrap_or_else(|payload| {
            let why = format!("panic in a call: {}", panic_message(&*payload));
            (self.abort)(&why);
            Err(self.panicked.get_or_init(|| CommError::system("this rank aborted", why)).clone())
        })
    }

    /// The worker thread: runs asynchronous calls and watches those on a device stream until the
    /// communicator is dropped.
    fn run_jobs(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                if let Some(job) = jobs.queue.pop_front() {
                    break Some(job);
                }
                if jobs.closed {
                    return;
                }
                if self.in_flight.load(Ordering::Acquire) {
                    let woken = self.job_added.wait_timeout(jobs, WATCH_INTERVAL);
                    let (guard, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                    jobs = guard;
                    if timeout.timed_out() {
                        break None;
                    }
                } else {
                    jobs = self.job_added.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                }
            };
            drop(jobs);
            match job {
                Some(Job { ticket, calls, after, completion }) => {
                    completion.complete(self.run_job(ticket, &calls, &after));
                }
                None => self.watch(),
            }
        }
    }

    fn run_job(&self, ticket: u64, calls: &SharedCalls, after: &[Event]) -> Result {
        self.tickets.wait(ticket);
        let _advance = AdvanceOnDrop(&self.tickets);
        after.iter().try_for_each(|event| self.wait_for(event))?;
        let run = |engine: &mut dyn Engine| engine.run_owned(&mut calls.lock(), 1);
        self.run_caught(lock(&self.engine).as_mut(), run)
    }

    /// Waits for work that a call depends on. If it failed, the communicator fails, too: the other
    /// ranks wait for a call that will not run.
    fn wait_for(&self, event: &Event) -> Result {
        loop {
            match event.wait_timeout(WATCH_INTERVAL) {
                Ok(true) => return Ok(()),
                Ok(false) if (self.has_failed)() => return Err(self.failure()),
                Ok(false) => self.watch(),
                Err(error) => {
                    (self.abort)(&format!("work that a call depends on failed: {error}"));
                    return Err(error);
                }
            }
        }
    }

    /// The error of a failed communicator, which each of its calls returns without waiting.
    fn failure(&self) -> CommError {
        let mut none = [];
        let barrier = Call::new(CallKind::Barrier, DType::U8, Counts::Equal(0), &mut none);
        let run = |engine: &mut dyn Engine| engine.run(barrier);
        let failed = self.run_caught(lock(&self.engine).as_mut(), run).err();
        failed.unwrap_or_else(|| CommError::system("communicator", "it has failed"))
    }

    /// Checks the calls in flight. A locked engine is running a call, which checks them itself.
    fn watch(&self) {
        if let Ok(mut engine) = self.engine.try_lock() {
            let polled = self.run_caught(engine.as_mut(), |engine| Ok(engine.poll()));
            self.in_flight.store(polled == Ok(true), Ordering::Release);
        }
    }
}

impl Communicator {
    /// A communicator on top of this engine.
    pub fn new(engine: BoxEngine) -> Self {
        Self {
            rank: engine.rank(),
            peers: engine.peers(),
            allocator: engine.allocator(),
            on_stream: engine.on_stream_fn(),
            monitor: engine.monitor(),
            transports: engine.transports(),
            shared: Arc::new(WorkerState {
                abort: engine.abort_fn(),
                has_failed: engine.has_failed_fn(),
                panicked: OnceLock::new(),
                engine: Mutex::new(engine),
                tickets: TicketQueue::default(),
                in_flight: AtomicBool::new(false),
                jobs: Mutex::default(),
                job_added: Condvar::new(),
            }),
        }
    }

    /// A communicator that records its calls if `REGATTA_PROFILE` names a folder.
    pub fn recorded(engine: BoxEngine) -> Self {
        Self::new(recording::recorded(engine))
    }

    /// The transports in use, as far as the engine names them.
    pub fn transports(&self) -> &Transports {
        &self.transports
    }

    fn in_turn<R>(&self, work: impl FnOnce(&mut dyn Engine) -> Result<R>) -> Result<R> {
        let WorkerState { engine, tickets, .. } = &*self.shared;
        let mut guard = lock(engine);
        // Without outstanding tickets, the engine's lock suffices.
        if tickets.outstanding.load(Ordering::Acquire) == 0 {
            return self.shared.run_caught(guard.as_mut(), work);
        }
        drop(guard);
        self.shared.in_turn(tickets.take(), work)
    }

    /// The jobs, with a running worker thread.
    fn jobs(&self) -> Result<MutexGuard<'_, Jobs>> {
        let mut jobs = lock(&self.shared.jobs);
        if jobs.thread.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("collectives".to_owned());
            let spawned = thread.spawn(move || shared.run_jobs());
            let what = "cannot spawn the worker thread for asynchronous calls";
            jobs.thread = Some(spawned.map_err(|error| CommError::system(what, error))?);
        }
        Ok(jobs)
    }

    /// Enqueues calls on the device stream. Waits for earlier calls that run on the host.
    fn enqueue_on_stream(&self, calls: &SharedCalls, after: &[Event]) -> Result<Event> {
        drop(self.jobs()?);
        let on_host = |event: &&Event| !event.is_on_device();
        after.iter().filter(on_host).try_for_each(|event| self.shared.wait_for(event))?;
        let shared = &self.shared;
        let (event, was_in_flight) = self.in_turn(|engine| {
            let event = engine.enqueue(calls, after)?;
            Ok((event, shared.in_flight.swap(true, Ordering::AcqRel)))
        })?;
        if !was_in_flight {
            // The lock orders the notification after the worker's check.
            drop(lock(&shared.jobs));
            shared.job_added.notify_one();
        }
        Ok(event)
    }

    /// Enqueues calls for the worker thread.
    fn enqueue_job(&self, calls: &SharedCalls, after: &[Event]) -> Result<Event> {
        let (event, completion) = CompleteOnDrop::new();
        let mut jobs = self.jobs()?;
        let (calls, after) = (calls.clone(), after.to_vec());
        let ticket = self.shared.tickets.take();
        jobs.queue.push_back(Job { ticket, calls, after, completion });
        drop(jobs);
        self.shared.job_added.notify_one();
        Ok(event)
    }
}

impl Comm for Communicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn peer(&self, rank: u32) -> Peer {
        let unknown = || Peer::new(rank, "?");
        self.peers.get(rank as usize).cloned().unwrap_or_else(unknown)
    }

    fn run(&self, call: Call<'_>) -> Result {
        call.check(self.rank, self.size())?;
        self.in_turn(|engine| engine.run(call))
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result {
        calls.iter().try_for_each(|call| call.check(self.rank, self.size()))?;
        self.in_turn(|engine| engine.run_group(calls))
    }

    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result {
        calls.iter().try_for_each(|call| call.check(self.rank, self.size()))?;
        self.in_turn(|engine| engine.run_owned(calls, times))
    }

    fn enqueue(&self, calls: Vec<OwnedCall>, after: &[Event]) -> Pending {
        let checked = calls.iter().try_for_each(|call| call.check(self.rank, self.size()));
        let on_stream = |on_stream: &OnStreamFn| calls.iter().all(|call| on_stream(call));
        let on_stream = self.on_stream.as_ref().is_some_and(on_stream);
        let calls = SharedCalls::new(calls);
        let event = checked.and_then(|()| match on_stream {
            true => self.enqueue_on_stream(&calls, after),
            false => self.enqueue_job(&calls, after),
        });
        Pending::with_event(event.unwrap_or_else(|error| Event::ended(Err(error))), calls)
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>> {
        let engine = self.in_turn(|engine| engine.split(colour, key))?;
        Ok(engine.map(|engine| Box::new(Self::new(engine)) as Box<dyn Comm>))
    }

    fn set_name(&self, name: &str) {
        let named = self.in_turn(|engine| {
            engine.set_name(name);
            Ok(())
        });
        // A failed communicator needs no name.
        drop(named);
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        (self.allocator.host)(bytes)
    }

    fn device_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.allocator.device.as_ref().map_or_else(|| Err(no_device()), |alloc| alloc(bytes))
    }

    fn abort(&self, why: &str) {
        (self.shared.abort)(why);
    }

    fn has_failed(&self) -> bool {
        (self.shared.has_failed)()
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        self.monitor.clone()
    }
}

/// Waits for queued calls, because exiting in the middle of one looks like a crash to the other
/// ranks. A panicking rank aborts instead.
impl Drop for Communicator {
    fn drop(&mut self) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.closed = true;
        let thread = jobs.thread.take();
        drop(jobs);
        self.shared.job_added.notify_one();
        if std::thread::panicking() && thread.is_some() {
            (self.shared.abort)("the rank panicked");
        }
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current().id()) {
            // The worker catches panics.
            let _ = thread.join();
        }
    }
}
