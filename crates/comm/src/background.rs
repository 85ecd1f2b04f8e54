//! Makes a [`Comm`] of an [`Engine`]: calls are done in the order in which they were made, by the
//! caller, or behind its back by a thread of the communicator.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::buffer::{Buffer, Space};
use crate::comm::{Finish, no_device};
use crate::error::Peer;
use crate::whole::Whole;
use crate::{Call, Comm, CommError, Kind, OwnedCall, Pending};

/// Tells an engine from another thread to give up what it does.
pub type Abort = Arc<dyn Fn(&str) + Send + Sync>;

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

    /// How to make it give up.
    fn abort(&self) -> Abort;

    /// For an engine that does its collectives in parts, of which this one is for all ranks.
    fn whole(&self) -> Option<Box<dyn Whole>> {
        None
    }
}

/// The messages of a group, and its collectives, each in their order.
pub fn apart(calls: Vec<Call<'_>>) -> (Vec<Call<'_>>, Vec<Call<'_>>) {
    calls.into_iter().partition(|call| matches!(call.kind, Kind::Send | Kind::Receive))
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
    memory: Memory,
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Box<dyn Engine>>,
    /// How many are in the line.
    before: AtomicU64,
    line: Mutex<Line>,
    moved: Condvar,
}

/// Who is served, and in what order.
#[derive(Default)]
struct Line {
    /// The number of the next to come.
    next: u64,
    /// The number that is served.
    serving: u64,
    /// What is done in the background, each with its number.
    queue: VecDeque<(u64, OwnedCall, Finish)>,
    /// Whether there is a thread for it.
    threaded: bool,
    closed: bool,
    /// How many wait for it to move: to wake nobody is a system call, too.
    waiting: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Waits for one's turn, has it, and lets the next one come. Without a number one comes last.
    fn in_turn<R>(&self, number: Option<u64>, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        let mut line = lock(&self.line);
        let number = number.unwrap_or_else(|| self.number(&mut line));
        while line.serving != number {
            line = self.wait(line);
        }
        drop(line);
        let done = work(lock(&self.engine).as_mut());
        let mut line = lock(&self.line);
        line.serving += 1;
        self.before.fetch_sub(1, Ordering::Release);
        self.wake(line);
        done
    }

    /// The number of one who comes now.
    fn number(&self, line: &mut Line) -> u64 {
        self.before.fetch_add(1, Ordering::AcqRel);
        line.next += 1;
        line.next - 1
    }

    fn wait<'a>(&self, mut line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        line.waiting += 1;
        line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        line.waiting -= 1;
        line
    }

    fn wake(&self, line: MutexGuard<'_, Line>) {
        let anybody = line.waiting > 0;
        drop(line);
        if anybody {
            self.moved.notify_all();
        }
    }

    /// Does what is queued until the communicator is closed.
    fn work(&self) {
        loop {
            let mut line = lock(&self.line);
            let (number, mut call, finish) = loop {
                if let Some(job) = line.queue.pop_front() {
                    break job;
                }
                if line.closed {
                    return;
                }
                line = self.wait(line);
            };
            drop(line);
            let done = self.in_turn(Some(number), |engine| engine.run_owned(&mut call));
            finish(done.map(|()| call));
        }
    }
}

impl Background {
    /// A communicator.
    pub fn new(engine: Box<dyn Engine>) -> Self {
        Self {
            rank: engine.rank(),
            peers: engine.peers(),
            abort: engine.abort(),
            memory: engine.memory(),
            shared: Arc::new(Shared {
                engine: Mutex::new(engine),
                before: AtomicU64::new(0),
                line: Mutex::new(Line::default()),
                moved: Condvar::new(),
            }),
        }
    }

    fn in_turn<R>(&self, work: impl FnOnce(&mut dyn Engine) -> R) -> R {
        // Where nobody is before us, there is no need to stand in line.
        let mut engine = lock(&self.shared.engine);
        if self.shared.before.load(Ordering::Acquire) == 0 {
            return work(engine.as_mut());
        }
        drop(engine);
        self.shared.in_turn(None, work)
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

    fn start(&self, call: OwnedCall) -> Pending {
        let (pending, finish) = Pending::new();
        if let Err(error) = call.check(self.rank, self.size()) {
            finish(Err(error));
            return pending;
        }
        let mut line = lock(&self.shared.line);
        if !line.threaded {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("collectives".to_owned());
            if let Err(error) = thread.spawn(move || shared.work()) {
                let what = "a thread for collectives".to_owned();
                finish(Err(CommError::System { what, why: error.to_string() }));
                return pending;
            }
            line.threaded = true;
        }
        let number = self.shared.number(&mut line);
        line.queue.push_back((number, call, finish));
        self.shared.wake(line);
        pending
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        let engine = self.in_turn(|engine| engine.split(colour, key))?;
        Ok(engine.map(|engine| Box::new(Self::new(engine)) as Box<dyn Comm>))
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
}

/// What is queued is still done; nobody waits for it here.
impl Drop for Background {
    fn drop(&mut self) {
        let mut line = lock(&self.shared.line);
        line.closed = true;
        self.shared.wake(line);
    }
}
