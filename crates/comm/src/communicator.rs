//! [`Communicator`] implements [`Comm`] on top of an [`Engine`]. Calls run in the order they were
//! issued, on the calling thread or on a worker thread of the communicator.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, current};

use crate::buffer::Buffer;
use crate::comm::{Completion, no_device};
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, HasFailedFn};
use crate::error::Peer;
use crate::{Call, Comm, CommError, OwnedCall, Pending, Result};

/// A communicator on top of an engine, with a worker thread for asynchronous calls.
pub struct Communicator {
    rank: u32,
    peers: Vec<Peer>,
    has_failed: HasFailedFn,
    allocator: Allocator,
    shared: Arc<WorkerState>,
}

struct WorkerState {
    engine: Mutex<BoxEngine>,
    abort: AbortFn,
    /// The error after a panic in a call, which may have left the engine inconsistent.
    panicked: OnceLock<CommError>,
    tickets: Arc<TicketQueue>,
    /// Whether the ticket queue is shared with other engines.
    serialized: bool,
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

/// The asynchronous calls.
#[derive(Default)]
struct Jobs {
    /// Each with its ticket.
    queue: VecDeque<(u64, OwnedCall, Completion)>,
    /// The worker thread, spawned on first use.
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The worker thread: runs asynchronous calls until the communicator is dropped.
    fn run_jobs(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (ticket, mut call, complete) = loop {
                if let Some(job) = jobs.queue.pop_front() {
                    break job;
                }
                if jobs.closed {
                    return;
                }
                jobs = self.job_added.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            let done = self.in_turn(ticket, |engine| engine.run_owned(&mut call));
            complete(done.map(|()| call));
        }
    }
}

impl Communicator {
    /// A communicator on top of this engine.
    pub fn new(engine: BoxEngine) -> Self {
        Self::with_tickets(engine, Arc::default())
    }

    fn with_tickets(engine: BoxEngine, tickets: Arc<TicketQueue>) -> Self {
        Self {
            rank: engine.rank(),
            peers: engine.peers(),
            has_failed: engine.has_failed_fn(),
            allocator: engine.allocator(),
            shared: Arc::new(WorkerState {
                serialized: engine.serialized(),
                abort: engine.abort_fn(),
                panicked: OnceLock::new(),
                engine: Mutex::new(engine),
                tickets,
                jobs: Mutex::default(),
                job_added: Condvar::new(),
            }),
        }
    }

    /// Closes a serialised engine in its turn.
    fn close(&self) {
        if self.shared.serialized {
            let close = |engine: &mut dyn Engine| {
                engine.close();
                Ok(())
            };
            // A panic has aborted the communicator.
            let _ = self.shared.in_turn(self.shared.tickets.take(), close);
        }
    }

    fn in_turn<R>(&self, work: impl FnOnce(&mut dyn Engine) -> Result<R>) -> Result<R> {
        let WorkerState { engine, tickets, serialized, .. } = &*self.shared;
        if !serialized {
            // Without outstanding tickets, the engine's lock suffices.
            let mut engine = lock(engine);
            if tickets.outstanding.load(Ordering::Acquire) == 0 {
                return self.shared.run_caught(engine.as_mut(), work);
            }
        }
        self.shared.in_turn(tickets.take(), work)
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

    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result {
        call.check(self.rank, self.size())?;
        self.in_turn(|engine| engine.repeat(call, times))
    }

    fn run_p2p(&self, messages: &mut [OwnedCall], times: u32) -> Result {
        messages.iter().try_for_each(|message| message.check(self.rank, self.size()))?;
        if let Some(other) = messages.iter().find(|message| !message.kind.is_p2p()) {
            let what = "not a point-to-point message: use Comm::run_owned";
            return Err(CommError::invalid_call(other.kind.name(), what));
        }
        self.in_turn(|engine| engine.repeat_p2p(messages, times))
    }

    fn start(&self, call: OwnedCall) -> Pending {
        let (pending, complete) = Pending::new();
        if let Err(error) = call.check(self.rank, self.size()) {
            complete(Err(error));
            return pending;
        }
        let mut jobs = lock(&self.shared.jobs);
        if jobs.thread.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("collectives".to_owned());
            match thread.spawn(move || shared.run_jobs()) {
                Ok(thread) => jobs.thread = Some(thread),
                Err(error) => {
                    let what = "cannot spawn the worker thread for asynchronous calls";
                    complete(Err(CommError::system(what, error)));
                    return pending;
                }
            }
        }
        jobs.queue.push_back((self.shared.tickets.take(), call, complete));
        drop(jobs);
        self.shared.job_added.notify_one();
        pending
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>> {
        let engine = self.in_turn(|engine| engine.split(colour, key))?;
        let tickets =
            || if self.shared.serialized { self.shared.tickets.clone() } else { Arc::default() };
        let comm = |engine| Box::new(Self::with_tickets(engine, tickets())) as Box<dyn Comm>;
        Ok(engine.map(comm))
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
        (self.has_failed)()
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
        let panicking = std::thread::panicking();
        if panicking && thread.is_some() {
            (self.shared.abort)("the rank panicked");
        }
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current().id()) {
            // The worker catches panics.
            let _ = thread.join();
        }
        if !panicking {
            self.close();
        }
    }
}
