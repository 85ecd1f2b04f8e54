//! [`Communicator`] implements [`Comm`] on top of an [`Engine`]. Calls run in the order they were
//! issued, on the calling thread or on a worker thread of the communicator.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, current};

use crate::buffer::{Buffer, MemorySpace};
use crate::comm::{Completion, no_device};
use crate::error::Peer;

use crate::{Call, CallKind, Comm, CommError, Counts, DType, OwnedCall, Pending, Result};

/// Aborts an engine from any thread, with a reason.
pub type AbortFn = Arc<dyn Fn(&str) + Send + Sync>;

/// Returns, without blocking, whether an engine is known to have failed.
pub type HasFailedFn = Arc<dyn Fn() -> bool + Send + Sync>;

/// Allocates buffers for an engine, even while it is running a call.
#[derive(Clone)]
pub struct Allocator {
    /// Allocates host memory that the engine accesses most efficiently.
    pub host: Arc<dyn Fn(usize) -> Buffer + Send + Sync>,
    /// Allocates memory on its device, if it has one.
    pub device: Option<DeviceAlloc>,
}

/// Allocates device memory.
pub type DeviceAlloc = Arc<dyn Fn(usize) -> Result<Buffer> + Send + Sync>;

/// Allocates on the heap.
impl Default for Allocator {
    fn default() -> Self {
        Self { host: Arc::new(Buffer::zeroed), device: None }
    }
}

/// An engine of any type.
pub type BoxEngine = Box<dyn Engine>;

/// Runs collectives, one at a time.
pub trait Engine: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// All ranks, in order.
    fn peers(&self) -> Vec<Peer>;

    /// Runs a collective.
    fn run(&mut self, call: Call<'_>) -> Result;

    /// Runs a collective whose buffers may be in device memory. Most engines support host memory only.
    fn run_owned(&mut self, call: &mut OwnedCall) -> Result {
        match call.space()? {
            MemorySpace::Host => self.run(call.as_call()),
            space => Err(unsupported_memory(call.kind.name(), space)),
        }
    }

    /// Runs a collective `times` times, back to back, as [`Comm::run_owned`].
    fn repeat(&mut self, call: &mut OwnedCall, times: u32) -> Result {
        (0..times).try_for_each(|_| self.run_owned(call))
    }

    /// Runs point-to-point messages `times` times, as [`Comm::run_p2p`].
    fn repeat_p2p(&mut self, messages: &mut [OwnedCall], times: u32) -> Result {
        if let Some((kind, space)) = first_device_buffer(messages)? {
            return Err(unsupported_memory(kind.name(), space));
        }
        let mut once = || self.run_p2p(messages.iter_mut().map(OwnedCall::as_call).collect());
        (0..times).try_for_each(|_| once())
    }

    /// Runs point-to-point messages concurrently. An engine whose sends block until they are received
    /// must override this.
    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        messages.into_iter().try_for_each(|call| self.run(call))
    }

    /// Runs a group of calls, as [`Comm::run_group`].
    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result {
        let (messages, collectives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| call.kind.is_p2p());
        self.run_p2p(messages)?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    /// The engine of a sub-communicator, as [`Comm::split`].
    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>>;

    /// The allocator for its buffers.
    fn allocator(&self) -> Allocator {
        Allocator::default()
    }

    /// Whether calls on the engines split off it must not run concurrently with its own.
    fn serialized(&self) -> bool {
        false
    }

    /// Closes the engine. For serialised engines this waits for its turn as well.
    fn close(&mut self) {}

    /// A function that aborts it.
    fn abort_fn(&self) -> AbortFn;

    /// A function that tells whether it has failed.
    fn has_failed_fn(&self) -> HasFailedFn {
        Arc::new(|| false)
    }
}

/// All-gathers the same number of bytes from every rank.
pub(crate) fn all_gather_bytes(engine: &mut dyn Engine, own: &[u8]) -> Result<Vec<u8>> {
    let mut all = vec![0; own.len() * engine.peers().len()];
    let call = Call::new(CallKind::AllGather, DType::U8, Counts::Equal(own.len()), &mut all);
    engine.run(Call { input: Some(own), ..call })?;
    Ok(all)
}

/// All-gathers two words per rank.
pub(crate) fn all_gather_words(engine: &mut dyn Engine, own: [u64; 2]) -> Result<Vec<[u64; 2]>> {
    let bytes: Vec<u8> = own.into_iter().flat_map(u64::to_le_bytes).collect();
    let all = all_gather_bytes(engine, &bytes)?;
    let (words, _) = all.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    Ok(pairs.iter().map(|pair| pair.map(u64::from_le_bytes)).collect())
}

/// All-gathers the arguments of [`Engine::split`].
pub(crate) fn all_gather_split_args(
    engine: &mut dyn Engine,
    colour: Option<u32>,
    key: i64,
) -> Result<Vec<(Option<u32>, i64)>> {
    let own = [colour.map_or(u64::MAX, u64::from), key.cast_unsigned()];
    let args = |[colour, key]: [u64; 2]| (u32::try_from(colour).ok(), key.cast_signed());
    Ok(all_gather_words(engine, own)?.into_iter().map(args).collect())
}

/// The first call with buffers in device memory.
pub(crate) fn first_device_buffer(calls: &[OwnedCall]) -> Result<Option<(CallKind, MemorySpace)>> {
    let mut spaces = calls.iter().map(|call| Ok((call.kind, call.space()?)));
    spaces.find(|space| !matches!(space, Ok((_, MemorySpace::Host)))).transpose()
}

fn unsupported_memory(call: &'static str, space: MemorySpace) -> CommError {
    let fix = "copy them to host memory (Buffer::copy_to_host), or create the communicator with \
               nccl::init";
    let what =
        format!("the buffers are in {space}, which this communicator does not support: {fix}");
    CommError::invalid_call(call, what)
}

/// A communicator on top of an engine, with a worker thread for asynchronous calls.
pub struct Communicator {
    rank: u32,
    peers: Vec<Peer>,
    abort: AbortFn,
    has_failed: HasFailedFn,
    allocator: Allocator,
    shared: Arc<WorkerState>,
}

struct WorkerState {
    engine: Mutex<BoxEngine>,
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

/// Advances the queue when dropped, also on panic.
struct AdvanceOnDrop<'a>(&'a TicketQueue);

impl Drop for AdvanceOnDrop<'_> {
    fn drop(&mut self) {
        self.0.advance();
    }
}

impl WorkerState {
    /// Runs `work` when the ticket is served.
    fn in_turn<R>(&self, ticket: u64, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        self.tickets.wait(ticket);
        let _advance = AdvanceOnDrop(&self.tickets);
        work(lock(&self.engine).as_mut())
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
            abort: engine.abort_fn(),
            has_failed: engine.has_failed_fn(),
            allocator: engine.allocator(),
            shared: Arc::new(WorkerState {
                serialized: engine.serialized(),
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
            self.shared.in_turn(self.shared.tickets.take(), |engine| engine.close());
        }
    }

    fn in_turn<R>(&self, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        let WorkerState { engine, tickets, serialized, .. } = &*self.shared;
        if !serialized {
            // Without outstanding tickets, the engine's lock suffices.
            let mut engine = lock(engine);
            if tickets.outstanding.load(Ordering::Acquire) == 0 {
                return work(engine.as_mut());
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
        (self.abort)(why);
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
            (self.abort)("the rank panicked");
        }
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current().id()) {
            // A panic of the worker was reported to the caller of `Pending::wait`.
            let _ = thread.join();
        }
        if !panicking {
            self.close();
        }
    }
}
