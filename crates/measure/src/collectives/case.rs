//! One call at one size: its buffers, their contents and the expected result.

use std::ops::Range;

use regatta_comm::{Buffer, Call, CallKind, Comm, Counts, DType, MemorySpace, OwnedCall, ReduceOp};
use regatta_model::Operation;
use serde::{Deserialize, Serialize};

use super::pattern::{Owner, Pattern, Period};
use crate::CommResult;

/// Memory of the buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Pageable host memory.
    Heap,
    /// Host memory registered with the communicator.
    Registered,
    /// Device memory of this rank.
    Device,
}

/// The call to measure.
#[derive(Debug, Clone)]
pub struct CallSpec {
    /// The operation.
    pub operation: Operation,
    /// Type of the elements.
    pub dtype: DType,
    /// The reduction, if the operation reduces.
    pub op: ReduceOp,
    /// Root rank, if the operation has one.
    pub root: u32,
    /// Element count passed to the call, as nccl-tests counts.
    pub count: usize,
    /// Whether input and output share a buffer.
    pub in_place: bool,
}

/// The collective of an operation that moves data; `None` for others.
pub fn kind(operation: &Operation) -> Option<CallKind> {
    let moves_data = |kind: &CallKind| *kind != CallKind::Barrier;
    let mut kinds = CallKind::ALL.into_iter().filter(moves_data);
    let name = operation.to_string();
    kinds.find(|kind| kind.name() == name)
}

/// The operations that can be measured.
pub fn operations() -> impl Iterator<Item = Operation> {
    let is_measured = |one: &Operation| *one == Operation::SendRecv || kind(one).is_some();
    Operation::KNOWN.into_iter().filter(is_measured)
}

/// A call with its buffers, repeatable.
pub struct CollectiveCase<'c> {
    pub comm: &'c dyn Comm,
    spec: CallSpec,
    /// One collective, or a send to the next rank and a receive from the previous one.
    calls: Vec<OwnedCall>,
    sent: Period,
}

/// An output range and the elements it must contain.
struct Expected {
    owner: Owner,
    start: usize,
    at: Range<usize>,
}

impl<'c> CollectiveCase<'c> {
    /// Allocates the buffers of a call.
    pub fn new(comm: &'c dyn Comm, spec: CallSpec, memory: MemoryKind) -> CommResult<Self> {
        let buffer = |bytes: usize| match memory {
            MemoryKind::Heap => Ok(Buffer::zeroed(bytes)),
            MemoryKind::Registered => Ok(comm.buffer(bytes)),
            MemoryKind::Device => comm.device_buffer(bytes),
        };
        let calls = match kind(&spec.operation) {
            Some(kind) => vec![collective(comm, &spec, kind, &buffer)?],
            None => send_recv(comm, &spec, &buffer)?.into(),
        };
        let sent = pattern(comm, &spec).period(Owner::Rank(comm.rank()));
        Ok(Self { comm, spec, calls, sent })
    }

    /// Calls `times` times, back to back. Host calls are issued one by one, as an application does;
    /// device calls are queued.
    pub fn run(&mut self, times: u32) -> CommResult {
        let comm = self.comm;
        match self.calls.as_mut_slice() {
            [call] if call.output.space() == MemorySpace::Host => {
                (0..times).try_for_each(|_| comm.run(call.as_call()))
            }
            calls => comm.run_owned(calls, times),
        }
    }

    /// Writes this rank's pattern into its send buffer and marks all other bytes as unsent.
    pub fn fill(&mut self) -> CommResult {
        let (range, size) = (self.send_range(), self.spec.dtype.size());
        let Some((call, more)) = self.calls.split_first_mut() else { return Ok(()) };
        let (input, rest) = match &mut call.input {
            Some(input) => (input, Some(&mut call.output)),
            None => (&mut call.output, None),
        };
        let sent = &self.sent;
        rewrite(input, |bytes| sent.fill(&mut bytes[range.start * size..range.end * size], 0))?;
        let mut others = rest.into_iter().chain(more.iter_mut().map(|c| &mut c.output));
        others.try_for_each(|other| rewrite(other, |_| ()))
    }

    /// Counts the wrong elements after a call.
    pub fn count_wrong(&self) -> CommResult<u64> {
        let Some(call) = self.calls.last() else { return Ok(0) };
        let mut fetched = Vec::new();
        let received = match call.output.space() {
            MemorySpace::Host => call.output.bytes(),
            MemorySpace::Device(_) => {
                fetched.resize(call.output.len(), 0u8);
                call.output.copy_to_host(&mut fetched)?;
                &fetched
            }
        };
        let size = self.spec.dtype.size();
        let pattern = pattern(self.comm, &self.spec);
        let wrong = |expected: Expected| {
            let received = &received[expected.at.start * size..expected.at.end * size];
            pattern.period(expected.owner).count_wrong(received, expected.start)
        };
        Ok(self.expected().into_iter().map(wrong).sum())
    }

    /// Range of the send buffer that holds this rank's data, in elements.
    fn send_range(&self) -> Range<usize> {
        let CallSpec { operation, count, in_place, root, .. } = &self.spec;
        let (me, ranks) = (self.comm.rank() as usize, self.comm.size() as usize);
        let is_root = *root as usize == me;
        match operation {
            Operation::AllGather if *in_place => me * count..(me + 1) * count,
            Operation::Gather if *in_place && is_root => me * count..(me + 1) * count,
            Operation::AllGather | Operation::Gather => 0..*count,
            Operation::ReduceScatter | Operation::AllToAll => 0..ranks * count,
            Operation::Scatter if is_root => 0..ranks * count,
            Operation::Scatter => 0..0,
            Operation::Broadcast if !is_root => 0..0,
            _ => 0..*count,
        }
    }

    /// The expected contents of the output.
    fn expected(&self) -> Vec<Expected> {
        let CallSpec { operation, count, in_place, root, .. } = &self.spec;
        let (count, me, ranks) = (*count, self.comm.rank(), self.comm.size());
        let is_root = *root == me;
        let chunk = |rank: u32| rank as usize * count..(rank as usize + 1) * count;
        let own_start = me as usize * count;
        let expected = |owner, start, at| vec![Expected { owner, start, at }];
        let from_each_rank = |start| {
            let of = |rank| Expected { owner: Owner::Rank(rank), start, at: chunk(rank) };
            (0..ranks).map(of).collect()
        };
        match operation {
            Operation::AllReduce => expected(Owner::All, 0, 0..count),
            Operation::Reduce if is_root => expected(Owner::All, 0, 0..count),
            Operation::ReduceScatter if *in_place => expected(Owner::All, own_start, chunk(me)),
            Operation::ReduceScatter => expected(Owner::All, own_start, 0..count),
            Operation::Broadcast => expected(Owner::Rank(*root), 0, 0..count),
            Operation::Scatter if *in_place && is_root => {
                expected(Owner::Rank(*root), own_start, chunk(me))
            }
            Operation::Scatter => expected(Owner::Rank(*root), own_start, 0..count),
            Operation::AllGather => from_each_rank(0),
            Operation::Gather if is_root => from_each_rank(0),
            Operation::AllToAll => from_each_rank(own_start),
            Operation::SendRecv => expected(Owner::Rank(previous_rank(me, ranks)), 0, 0..count),
            _ => Vec::new(),
        }
    }
}

/// Marks unsent bytes; no pattern starts with it.
const UNSENT: u8 = 0xa5;

/// Overwrites a buffer. Host buffers are written in place because large ones leave no memory for a
/// copy.
fn rewrite(buffer: &mut Buffer, fill: impl FnOnce(&mut [u8])) -> CommResult {
    match buffer.space() {
        MemorySpace::Host => {
            let bytes = buffer.bytes_mut();
            bytes.fill(UNSENT);
            fill(bytes);
            Ok(())
        }
        MemorySpace::Device(_) => {
            let mut bytes = vec![UNSENT; buffer.len()];
            fill(&mut bytes);
            buffer.copy_from_host(&bytes)
        }
    }
}

fn previous_rank(rank: u32, ranks: u32) -> u32 {
    (rank + ranks - 1) % ranks
}

fn pattern(comm: &dyn Comm, spec: &CallSpec) -> Pattern {
    let reduces = kind(&spec.operation).is_some_and(CallKind::reduces);
    Pattern { dtype: spec.dtype, op: reduces.then_some(spec.op), ranks: comm.size() }
}

fn collective(
    comm: &dyn Comm,
    spec: &CallSpec,
    kind: CallKind,
    buffer: &dyn Fn(usize) -> CommResult<Buffer>,
) -> CommResult<OwnedCall> {
    let counts = Counts::Equal(spec.count);
    // A broadcast has a single buffer in either mode.
    let one_buffer = spec.in_place || kind == CallKind::Broadcast;
    let call = Call::new(kind, spec.dtype, counts.clone(), &mut []);
    let call = Call { root: spec.root, input: (!one_buffer).then_some(&[]), ..call };
    let (input, output) = call.lengths(comm.rank() as usize, comm.size() as usize);
    let size = spec.dtype.size();
    let call = OwnedCall::new(kind, spec.dtype, counts, buffer(output * size)?);
    let input = if one_buffer { None } else { Some(buffer(input * size)?) };
    Ok(OwnedCall { op: spec.op, root: spec.root, input, ..call })
}

/// A send to the next rank and a receive from the previous one.
fn send_recv(
    comm: &dyn Comm,
    spec: &CallSpec,
    buffer: &dyn Fn(usize) -> CommResult<Buffer>,
) -> CommResult<[OwnedCall; 2]> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, root| -> CommResult<OwnedCall> {
        let buffer = buffer(spec.count * spec.dtype.size())?;
        let call = OwnedCall::new(kind, spec.dtype, Counts::Equal(spec.count), buffer);
        Ok(OwnedCall { root, ..call })
    };
    let send = message(CallKind::Send, (rank + 1) % ranks)?;
    Ok([send, message(CallKind::Receive, previous_rank(rank, ranks))?])
}
