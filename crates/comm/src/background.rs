//! Makes a [`Comm`] of an [`Engine`]: calls are done in the order in which they were made, by the
//! caller, or behind its back by a thread of the communicator.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, current};

use crate::blame::Waits;
use crate::buffer::{Buffer, Space};
use crate::comm::{Finish, no_device};
use crate::error::Peer;
use crate::whole::Whole;
use crate::{Call, Comm, CommError, Counts, DType, Kind, OwnedCall, Pending, ReduceOp};

/// Tells an engine from another thread to give up what it does.
pub type Abort = Arc<dyn Fn(&str) + Send + Sync>;

/// Tells without waiting whether an engine has given up, or knows that it will.
pub type Over = Arc<dyn Fn() -> bool + Send + Sync>;

/// Where buffers for an engine come from, while it does something else.
#[derive(Clone)]
pub struct Memory {
    /// In host memory, where it likes them best.
    pub host: Arc<dyn Fn(usize) -> Buffer + Send + Sync>,
    /// On its device, if it has one.
    pub device: Option<OnDevice>,
}

/// Gives memory on a device.
pub type OnDevice = Arc<dyn Fn(usize) -> Result<Buffer, CommError> + Send + Sync>;

/// The heap.
impl Default for Memory {
    fn default() -> Self {
        Self { host: Arc::new(Buffer::zeroed), device: None }
    }
}

/// Does one collective after the other.
pub trait Engine: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// All ranks, in their order.
    fn peers(&self) -> Vec<Peer>;

    /// Does one collective.
    fn run(&mut self, call: Call<'_>) -> Result<(), CommError>;

    /// Does one whose buffers may lie on a device; most reach host memory only.
    fn run_owned(&mut self, call: &mut OwnedCall) -> Result<(), CommError> {
        match call.space()? {
            Space::Host => self.run(call.as_call()),
            space => Err(out_of_reach(call.kind.name(), space)),
        }
    }

    /// Does one so many times in a row, as [`Comm::run_owned`].
    fn repeat(&mut self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        (0..times).try_for_each(|_| self.run_owned(call))
    }

    /// Sends and receives messages so many times, as [`Comm::run_messages`].
    fn repeat_messages(&mut self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        if let Some((kind, space)) = elsewhere(messages)? {
            return Err(out_of_reach(kind.name(), space));
        }
        (0..times)
            .try_for_each(|_| self.run_group(messages.iter_mut().map(OwnedCall::as_call).collect()))
    }

    /// Does several at once, as [`Comm::run_group`]. An engine in which a message waits for the
    /// other rank must do better than this.
    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        calls.into_iter().try_for_each(|call| self.run(call))
    }

    /// An engine for the ranks of the same colour, as [`Comm::split`].
    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError>;

    /// Where buffers for it come from.
    fn memory(&self) -> Memory {
        Memory::default()
    }

    /// Whether the engines that are split off it must not work at the same time as it.
    fn in_one_line(&self) -> bool {
        false
    }

    /// Ends it. Of engines in one line, this is done in their turn, too.
    fn close(&mut self) {}

    /// Whom it waits for at the moment, of whom only it knows.
    fn waits(&self) -> Waits {
        Arc::new(Vec::new)
    }

    /// How to make it give up.
    fn abort(&self) -> Abort;

    /// How to ask whether it is over.
    fn over(&self) -> Over {
        Arc::new(|| false)
    }

    /// For an engine that does its collectives in parts, of which this one is for all ranks.
    fn whole(&self) -> Option<Box<dyn Whole>> {
        None
    }
}

/// The messages of a group, and its collectives, each in their order.
pub fn apart(calls: Vec<Call<'_>>) -> (Vec<Call<'_>>, Vec<Call<'_>>) {
    calls.into_iter().partition(|call| is_message(call.kind))
}

fn is_message(kind: Kind) -> bool {
    matches!(kind, Kind::Send | Kind::Receive)
}

/// Bytes of all ranks, one after the other; all give as many.
pub(crate) fn gathered(engine: &mut dyn Engine, own: &[u8]) -> Result<Vec<u8>, CommError> {
    let mut all = vec![0; own.len() * engine.peers().len()];
    engine.run(Call {
        kind: Kind::AllGather,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        root: 0,
        tag: 0,
        counts: Counts::Equal(own.len()),
        input: Some(own),
        output: &mut all,
    })?;
    Ok(all)
}

/// The first of these calls that is not in host memory.
pub(crate) fn elsewhere(calls: &[OwnedCall]) -> Result<Option<(Kind, Space)>, CommError> {
    for call in calls {
        let space = call.space()?;
        if space != Space::Host {
            return Ok(Some((call.kind, space)));
        }
    }
    Ok(None)
}

/// What says that ranks cannot reach where buffers lie.
fn out_of_reach(call: &'static str, space: Space) -> CommError {
    let what = format!(
        "its buffers lie in {space}, which these ranks do not reach: fetch them to host memory, or \
         connect ranks by nccl::over"
    );
    CommError::Shape { call, what }
}

/// A communicator on top of an engine.
pub struct Background {
    rank: u32,
    peers: Vec<Peer>,
    abort: Abort,
    over: Over,
    memory: Memory,
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Box<dyn Engine>>,
    line: Arc<Line>,
    /// Whether other engines stand in it, too.
    in_one_line: bool,
    jobs: Mutex<Jobs>,
    come: Condvar,
}

/// Who is served, and in what order.
#[derive(Default)]
struct Line {
    /// How many are in it.
    before: AtomicU64,
    turns: Mutex<Turns>,
    moved: Condvar,
}

#[derive(Default)]
struct Turns {
    /// The number of the next to come.
    next: u64,
    /// The number that is served.
    serving: u64,
    /// How many wait for it to move: to wake nobody is a system call, too.
    waiting: usize,
}

/// What is done in the background.
#[derive(Default)]
struct Jobs {
    /// Each with its number in the line.
    queue: VecDeque<(u64, OwnedCall, Finish)>,
    /// Who does it, once there is something.
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// The number of one who comes now.
    fn number(&self) -> u64 {
        let mut turns = lock(&self.turns);
        self.before.fetch_add(1, Ordering::AcqRel);
        turns.next += 1;
        turns.next - 1
    }

    /// Waits for the turn of a number.
    fn await_turn(&self, number: u64) {
        let mut turns = lock(&self.turns);
        while turns.serving != number {
            turns.waiting += 1;
            turns = self.moved.wait(turns).unwrap_or_else(PoisonError::into_inner);
            turns.waiting -= 1;
        }
    }

    /// Lets the next one come.
    fn next(&self) {
        let mut turns = lock(&self.turns);
        turns.serving += 1;
        self.before.fetch_sub(1, Ordering::Release);
        let anybody = turns.waiting > 0;
        drop(turns);
        if anybody {
            self.moved.notify_all();
        }
    }
}

/// Lets the next one come when it is dropped, whatever happens.
struct Next<'a>(&'a Line);

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.0.next();
    }
}

impl Shared {
    /// Waits for one's turn, has it, and lets the next one come.
    fn in_turn<R>(&self, number: u64, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        self.line.await_turn(number);
        let _next = Next(&self.line);
        work(lock(&self.engine).as_mut())
    }

    /// Does what is queued until the communicator is closed.
    fn work(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (number, mut call, finish) = loop {
                if let Some(job) = jobs.queue.pop_front() {
                    break job;
                }
                if jobs.closed {
                    return;
                }
                jobs = self.come.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            let done = self.in_turn(number, |engine| engine.run_owned(&mut call));
            finish(done.map(|()| call));
        }
    }
}

impl Background {
    /// A communicator.
    pub fn new(engine: Box<dyn Engine>) -> Self {
        Self::in_line(engine, Arc::default())
    }

    fn in_line(engine: Box<dyn Engine>, line: Arc<Line>) -> Self {
        Self {
            rank: engine.rank(),
            peers: engine.peers(),
            abort: engine.abort(),
            over: engine.over(),
            memory: engine.memory(),
            shared: Arc::new(Shared {
                in_one_line: engine.in_one_line(),
                engine: Mutex::new(engine),
                line,
                jobs: Mutex::default(),
                come: Condvar::new(),
            }),
        }
    }

    /// Lets the engine end in its turn, if others stand in the line.
    fn close(&self) {
        if self.shared.in_one_line {
            self.shared.in_turn(self.shared.line.number(), |engine| engine.close());
        }
    }

    fn in_turn<R>(&self, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        let Shared { engine, line, in_one_line, .. } = &*self.shared;
        if !in_one_line {
            // Where nobody is before us, there is no need to stand in line.
            let mut engine = lock(engine);
            if line.before.load(Ordering::Acquire) == 0 {
                return work(engine.as_mut());
            }
        }
        self.shared.in_turn(line.number(), work)
    }
}

impl Comm for Background {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn peer(&self, rank: u32) -> Peer {
        let unknown = || Peer { rank, host: "?".to_owned() };
        self.peers.get(rank as usize).cloned().unwrap_or_else(unknown)
    }

    fn run(&self, call: Call<'_>) -> Result<(), CommError> {
        call.check(self.rank, self.size())?;
        self.in_turn(|engine| engine.run(call))
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        calls.iter().try_for_each(|call| call.check(self.rank, self.size()))?;
        self.in_turn(|engine| engine.run_group(calls))
    }

    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        call.check(self.rank, self.size())?;
        self.in_turn(|engine| engine.repeat(call, times))
    }

    fn run_messages(&self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        messages.iter().try_for_each(|message| message.check(self.rank, self.size()))?;
        if let Some(other) = messages.iter().find(|m| !is_message(m.kind)) {
            let what = "it is no message: do it by Comm::run_owned".to_owned();
            return Err(CommError::Shape { call: other.kind.name(), what });
        }
        self.in_turn(|engine| engine.repeat_messages(messages, times))
    }

    fn start(&self, call: OwnedCall) -> Pending {
        let (pending, finish) = Pending::new();
        if let Err(error) = call.check(self.rank, self.size()) {
            finish(Err(error));
            return pending;
        }
        let mut jobs = lock(&self.shared.jobs);
        if jobs.thread.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("collectives".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(thread) => jobs.thread = Some(thread),
                Err(error) => {
                    let what = "a thread for collectives".to_owned();
                    finish(Err(CommError::System { what, why: error.to_string() }));
                    return pending;
                }
            }
        }
        jobs.queue.push_back((self.shared.line.number(), call, finish));
        drop(jobs);
        self.shared.come.notify_one();
        pending
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        let engine = self.in_turn(|engine| engine.split(colour, key))?;
        let line =
            || if self.shared.in_one_line { self.shared.line.clone() } else { Arc::default() };
        Ok(engine.map(|engine| Box::new(Self::in_line(engine, line())) as Box<dyn Comm>))
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        (self.memory.host)(bytes)
    }

    fn device_buffer(&self, bytes: usize) -> Result<Buffer, CommError> {
        self.memory.device.as_ref().map_or_else(|| Err(no_device()), |memory| memory(bytes))
    }

    fn abort(&self, why: &str) {
        (self.abort)(why);
    }

    fn is_over(&self) -> bool {
        (self.over)()
    }
}

/// What is queued is still done, and waited for: a process that ended meanwhile would take it along,
/// and to others it would look as if it had died. A rank that panics does not wait for others.
impl Drop for Background {
    fn drop(&mut self) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.closed = true;
        let thread = jobs.thread.take();
        drop(jobs);
        self.shared.come.notify_one();
        let panics = std::thread::panicking();
        if panics && thread.is_some() {
            (self.abort)("the rank panicked");
        }
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current().id()) {
            // It has nothing to say.
            let _ = thread.join();
        }
        if !panics {
            self.close();
        }
    }
}
