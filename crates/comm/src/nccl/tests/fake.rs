//! A simulated GPU runtime and NCCL behind the same function tables. A stream is a queue of
//! operations, and nothing runs but the heads of the streams: an operation that waits blocks its
//! stream and no other. Every function first runs all operations that can run, so a stream that is
//! not idle afterwards waits for an operation that is not yet enqueued, or forever.

mod api;
mod runtime;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::gpu_runtime::Stream;

pub use api::api;
pub use runtime::{new_stream, runtime};

/// `ncclRemoteError`.
const REMOTE_ERROR: i32 = 6;

static SIMULATION: LazyLock<Mutex<Simulation>> = LazyLock::new(Mutex::default);

fn simulation() -> MutexGuard<'static, Simulation> {
    SIMULATION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All devices and communicators of the process.
#[derive(Default)]
struct Simulation {
    last_handle: usize,
    streams: BTreeMap<usize, VecDeque<Operation>>,
    events: HashMap<usize, Recorded>,
    comms: HashMap<usize, FakeComm>,
    /// Device memory, by address.
    memory: BTreeMap<usize, Box<[u8]>>,
    /// The ends of connections that were needed so far: communicator, sender, receiver, and whether
    /// the sender needed it. A message waits on the host until both ends need the connection.
    ends: HashSet<(u64, usize, usize, bool)>,
    /// Closed gates.
    gates: Vec<usize>,
    /// Accesses to memory that is not allocated.
    invalid_accesses: usize,
}

/// How often an event was recorded, and the records that have not completed: those on different
/// streams complete in any order.
#[derive(Default)]
struct Recorded {
    issued: u64,
    pending: HashSet<u64>,
}

/// One rank of a communicator.
struct FakeComm {
    id: u64,
    rank: usize,
    size: usize,
    aborted: bool,
    async_error: i32,
    /// Launched by the next query of the state, as in non-blocking mode.
    unlaunched: Vec<(usize, Vec<Part>)>,
    launches: usize,
    /// Operations so far: collectives, and messages by direction and peer.
    issued: HashMap<Option<(bool, usize)>, u64>,
}

enum Operation {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Record {
        event: usize,
        number: u64,
    },
    Wait {
        event: usize,
        number: u64,
    },
    /// A kernel that ends when the test opens the gate.
    Gate(usize),
    Free(usize),
    Group(Vec<Part>),
}

/// An operation of a group.
#[derive(Clone)]
struct Part {
    comm: usize,
    kind: PartKind,
    /// The number of the operation among those that it could be matched with.
    number: u64,
    done: bool,
}

#[derive(Clone, Copy)]
enum PartKind {
    Send { to: usize, address: usize, bytes: usize },
    Recv { from: usize, address: usize },
    AllReduce { from: usize, to: usize, bytes: usize, is_f32: bool },
    AllGather { from: usize, to: usize, bytes: usize },
}

/// What the operations of different ranks are matched by.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum MatchKey {
    Collective { id: u64, number: u64 },
    Message { id: u64, from: usize, to: usize, number: u64 },
}

/// Enqueues a kernel that ends when [`open_gate`] is called.
pub fn close_gate(stream: Stream) -> usize {
    let mut simulation = simulation();
    let gate = simulation.new_handle();
    simulation.gates.push(gate);
    simulation.push(stream as usize, Operation::Gate(gate));
    gate
}

pub fn open_gate(gate: usize) {
    let mut simulation = simulation();
    simulation.gates.retain(|closed| *closed != gate);
    simulation.progress();
}

/// Whether everything enqueued on a stream has run.
pub fn is_idle(stream: Stream) -> bool {
    let mut simulation = simulation();
    simulation.progress();
    simulation.streams.get(&(stream as usize)).is_none_or(VecDeque::is_empty)
}

/// Whether the memory at an address is allocated.
pub fn is_allocated(address: *const c_void) -> bool {
    simulation().memory.contains_key(&(address as usize))
}

/// Accesses of collectives to memory that is not allocated.
pub fn invalid_accesses() -> usize {
    simulation().invalid_accesses
}

/// The number of groups that a rank of a communicator has launched.
pub fn launches(raw: usize) -> usize {
    simulation().comms[&raw].launches
}

/// Lets a rank of a communicator report an asynchronous error.
pub fn set_async_error(raw: usize) {
    if let Some(comm) = simulation().comms.get_mut(&raw) {
        comm.async_error = REMOTE_ERROR;
    }
}

impl Simulation {
    fn new_handle(&mut self) -> usize {
        self.last_handle += 64;
        self.last_handle
    }

    fn push(&mut self, stream: usize, operation: Operation) {
        self.streams.entry(stream).or_default().push_back(operation);
        self.progress();
    }

    /// Runs all operations that can run.
    fn progress(&mut self) {
        while self.run_heads() || self.run_matched() {}
    }

    /// Runs the heads of the streams that depend on no other rank; whether there were any.
    fn run_heads(&mut self) -> bool {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        let mut has_run = false;
        for stream in streams {
            while let Some(head) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
                if self.run_head(&head) {
                    has_run = true;
                } else {
                    self.streams.entry(stream).or_default().push_front(head);
                    break;
                }
            }
        }
        has_run
    }

    fn run_head(&mut self, head: &Operation) -> bool {
        match head {
            Operation::Copy { to, from, bytes } => copy(*to, *from, *bytes),
            Operation::Record { event, number } => {
                self.events.entry(*event).or_default().pending.remove(number);
            }
            Operation::Wait { event, number } => {
                return self.events.get(event).is_none_or(|event| !event.pending.contains(number));
            }
            Operation::Gate(gate) => return !self.gates.contains(gate),
            Operation::Free(address) => drop(self.memory.remove(address)),
            Operation::Group(parts) => {
                let ended = |part: &Part| part.done || self.is_aborted(part.comm);
                return parts.iter().all(ended);
            }
        }
        true
    }

    fn is_aborted(&self, comm: usize) -> bool {
        self.comms.get(&comm).is_none_or(|comm| comm.aborted)
    }

    /// Runs the collectives and messages whose ranks have all arrived; whether there were any.
    fn run_matched(&mut self) -> bool {
        let mut arrived: HashMap<MatchKey, Vec<(usize, usize)>> = HashMap::new();
        for (stream, queue) in &self.streams {
            let Some(Operation::Group(parts)) = queue.front() else { continue };
            for (index, part) in parts.iter().enumerate() {
                if !part.done && !self.is_aborted(part.comm) {
                    arrived.entry(self.match_key(part)).or_default().push((*stream, index));
                }
            }
        }
        let mut has_run = false;
        for (key, members) in arrived {
            let parts: Vec<Part> =
                members.iter().filter_map(|at| self.part(*at).cloned()).collect();
            let expected = match key {
                MatchKey::Message { .. } => 2,
                MatchKey::Collective { .. } => self.comms[&parts[0].comm].size,
            };
            if parts.len() == expected {
                self.run_parts(&parts);
                has_run = true;
                for at in members {
                    if let Some(part) = self.part(at) {
                        part.done = true;
                    }
                }
            }
        }
        has_run
    }

    fn part(&mut self, (stream, index): (usize, usize)) -> Option<&mut Part> {
        match self.streams.get_mut(&stream)?.front_mut()? {
            Operation::Group(parts) => parts.get_mut(index),
            _ => None,
        }
    }

    fn match_key(&self, part: &Part) -> MatchKey {
        let (comm, number) = (&self.comms[&part.comm], part.number);
        let id = comm.id;
        match part.kind {
            PartKind::Send { to, .. } => MatchKey::Message { id, from: comm.rank, to, number },
            PartKind::Recv { from, .. } => MatchKey::Message { id, from, to: comm.rank, number },
            _ => MatchKey::Collective { id, number },
        }
    }

    /// Notes that a message needs its connection.
    fn connect(&mut self, part: &Part) {
        if let MatchKey::Message { id, from, to, .. } = self.match_key(part) {
            let is_send = matches!(part.kind, PartKind::Send { .. });
            self.ends.insert((id, from, to, is_send));
        }
    }

    fn is_connected(&self, part: &Part) -> bool {
        match self.match_key(part) {
            MatchKey::Message { id, from, to, .. } => {
                [true, false].iter().all(|is_send| self.ends.contains(&(id, from, to, *is_send)))
            }
            MatchKey::Collective { .. } => true,
        }
    }

    /// Runs a collective or message of all its ranks.
    fn run_parts(&mut self, parts: &[Part]) {
        let mut parts = parts.to_vec();
        parts.sort_by_key(|part| self.comms[&part.comm].rank);
        let inputs: Vec<Vec<u8>> = parts.iter().map(|part| self.read(part)).collect();
        for part in &parts {
            let output = match part.kind {
                PartKind::Send { .. } => continue,
                PartKind::Recv { .. } | PartKind::AllGather { .. } => inputs.concat(),
                PartKind::AllReduce { is_f32: true, .. } => sum_f32(&inputs),
                PartKind::AllReduce { .. } => inputs[0].clone(),
            };
            self.write(part, &output);
        }
    }

    fn read(&mut self, part: &Part) -> Vec<u8> {
        let (address, bytes) = match part.kind {
            PartKind::Send { address, bytes, .. } => (address, bytes),
            PartKind::Recv { .. } => return Vec::new(),
            PartKind::AllReduce { from, bytes, .. } | PartKind::AllGather { from, bytes, .. } => {
                (from, bytes)
            }
        };
        self.memory_at(address, bytes).map_or(vec![0; bytes], |bytes| bytes.to_vec())
    }

    fn write(&mut self, part: &Part, output: &[u8]) {
        let to = match part.kind {
            PartKind::Send { .. } => return,
            PartKind::Recv { address, .. } => address,
            PartKind::AllReduce { to, .. } | PartKind::AllGather { to, .. } => to,
        };
        if let Some(memory) = self.memory_at(to, output.len()) {
            memory.copy_from_slice(output);
        }
    }

    /// Device memory at an address.
    fn memory_at(&mut self, address: usize, bytes: usize) -> Option<&mut [u8]> {
        let below = self.memory.range_mut(..=address).next_back();
        let found =
            below.and_then(|(start, memory)| memory.get_mut(address - start..)?.get_mut(..bytes));
        if found.is_none() {
            self.invalid_accesses += 1;
        }
        found
    }
}

fn copy(to: usize, from: usize, bytes: usize) {
    // SAFETY: the caller of the copy passed memory that lives until the stream is idle.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

fn sum_f32(inputs: &[Vec<u8>]) -> Vec<u8> {
    let value = |input: &[u8], at: usize| {
        let (values, _) = input.as_chunks::<4>();
        f32::from_le_bytes(values[at])
    };
    let sum = |at: usize| inputs.iter().map(|input| value(input, at)).sum::<f32>();
    (0..inputs[0].len() / 4).flat_map(|at| sum(at).to_le_bytes()).collect()
}
