//! One call of one size, with its buffers: what goes in, and what must come out.

use std::ops::Range;

use regatta_comm::{
    Buffer, Call, Comm, CommError, Counts, DType, Kind, OwnedCall, ReduceOp, Space,
};
use regatta_model::Operation;

use super::pattern::{Pattern, Period, Whose};

/// Where buffers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Anywhere in host memory, as programs have them.
    Heap,
    /// In host memory where the communicator likes them best.
    Registered,
    /// On this rank's device.
    Device,
}

/// What is called.
#[derive(Debug, Clone)]
pub struct Shape {
    pub operation: Operation,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    /// Elements that a rank gives to the call, as nccl-tests counts them.
    pub count: usize,
    /// Whether input and output are one buffer.
    pub in_place: bool,
}

/// The collective that an operation is; messages are none.
pub fn kind(operation: &Operation) -> Option<Kind> {
    Some(match operation {
        Operation::AllReduce => Kind::AllReduce,
        Operation::AllGather => Kind::AllGather,
        Operation::ReduceScatter => Kind::ReduceScatter,
        Operation::Broadcast => Kind::Broadcast,
        Operation::Reduce => Kind::Reduce,
        Operation::AllToAll => Kind::AllToAll,
        Operation::Gather => Kind::Gather,
        Operation::Scatter => Kind::Scatter,
        _ => return None,
    })
}

/// A call that can be made again and again.
pub struct Case<'c> {
    comm: &'c dyn Comm,
    shape: Shape,
    /// One collective, or a message to the next rank and one from the rank before.
    calls: Vec<OwnedCall>,
    sent: Period,
}

/// Elements of the output, and whose they must be from which place on.
struct Due {
    whose: Whose,
    start: usize,
    at: Range<usize>,
}

impl<'c> Case<'c> {
    /// Has buffers made for a call.
    pub fn new(comm: &'c dyn Comm, shape: Shape, memory: Memory) -> Result<Self, CommError> {
        let buffer = |bytes: usize| match memory {
            Memory::Heap => Ok(Buffer::zeroed(bytes)),
            Memory::Registered => Ok(comm.buffer(bytes)),
            Memory::Device => comm.device_buffer(bytes),
        };
        let calls = match kind(&shape.operation) {
            Some(kind) => vec![collective(comm, &shape, kind, &buffer)?],
            None => messages(comm, &shape, &buffer)?.into(),
        };
        let sent = pattern(comm, &shape).period(Whose::Rank(comm.rank()));
        Ok(Self { comm, shape, calls, sent })
    }

    /// Calls so many times in a row: in host memory as a program calls, so that each costs what it
    /// does there; on a device all are queued.
    pub fn run(&mut self, times: u32) -> Result<(), CommError> {
        let comm = self.comm;
        match self.calls.as_mut_slice() {
            [call] if call.output.space() == Space::Host => {
                (0..times).try_for_each(|_| comm.run(call.as_call()))
            }
            [call] => comm.run_owned(call, times),
            messages => comm.run_messages(messages, times),
        }
    }

    /// Puts what this rank sends where it belongs, and into the rest what nobody sends.
    pub fn fill(&mut self) -> Result<(), CommError> {
        let (place, whole) = (self.given(), self.shape.dtype.size());
        let Some((call, more)) = self.calls.split_first_mut() else { return Ok(()) };
        let (given, rest) = match &mut call.input {
            Some(input) => (input, Some(&mut call.output)),
            None => (&mut call.output, None),
        };
        let sent = &self.sent;
        write(given, |bytes| sent.fill(&mut bytes[place.start * whole..place.end * whole], 0))?;
        let mut others = rest.into_iter().chain(more.iter_mut().map(|c| &mut c.output));
        others.try_for_each(|other| write(other, |_| ()))
    }

    /// How many elements are wrong after a call.
    pub fn wrong(&self) -> Result<u64, CommError> {
        let Some(call) = self.calls.last() else { return Ok(0) };
        let mut fetched = Vec::new();
        let got = match call.output.space() {
            Space::Host => call.output.bytes(),
            Space::Device(_) => {
                fetched.resize(call.output.len(), 0u8);
                call.output.fetch(&mut fetched)?;
                &fetched
            }
        };
        let size = self.shape.dtype.size();
        let pattern = pattern(self.comm, &self.shape);
        let wrong = |due: Due| {
            let got = &got[due.at.start * size..due.at.end * size];
            pattern.period(due.whose).wrong(got, due.start)
        };
        Ok(self.due().into_iter().map(wrong).sum())
    }

    /// Where in its buffer what this rank sends begins and ends, in elements.
    fn given(&self) -> Range<usize> {
        let Shape { operation, count, in_place, root, .. } = &self.shape;
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

    /// What must be in the output.
    fn due(&self) -> Vec<Due> {
        let Shape { operation, count, in_place, root, .. } = &self.shape;
        let (count, me, ranks) = (*count, self.comm.rank(), self.comm.size());
        let is_root = *root == me;
        let part = |rank: u32| rank as usize * count..(rank as usize + 1) * count;
        let own = me as usize * count;
        let due = |whose, start, at| vec![Due { whose, start, at }];
        let of_each = |start| {
            let of = |rank| Due { whose: Whose::Rank(rank), start, at: part(rank) };
            (0..ranks).map(of).collect()
        };
        match operation {
            Operation::AllReduce => due(Whose::All, 0, 0..count),
            Operation::Reduce if is_root => due(Whose::All, 0, 0..count),
            Operation::ReduceScatter if *in_place => due(Whose::All, own, part(me)),
            Operation::ReduceScatter => due(Whose::All, own, 0..count),
            Operation::Broadcast => due(Whose::Rank(*root), 0, 0..count),
            Operation::Scatter if *in_place && is_root => due(Whose::Rank(*root), own, part(me)),
            Operation::Scatter => due(Whose::Rank(*root), own, 0..count),
            Operation::AllGather => of_each(0),
            Operation::Gather if is_root => of_each(0),
            Operation::AllToAll => of_each(own),
            Operation::SendRecv => due(Whose::Rank(before(me, ranks)), 0, 0..count),
            _ => Vec::new(),
        }
    }
}

/// A byte that no pattern begins with.
const UNSENT: u8 = 0xa5;

/// Writes a buffer anew; in host memory where it lies, for large ones leave no room for a copy.
fn write(buffer: &mut Buffer, fill: impl FnOnce(&mut [u8])) -> Result<(), CommError> {
    match buffer.space() {
        Space::Host => {
            let bytes = buffer.bytes_mut();
            bytes.fill(UNSENT);
            fill(bytes);
            Ok(())
        }
        Space::Device(_) => {
            let mut bytes = vec![UNSENT; buffer.len()];
            fill(&mut bytes);
            buffer.put(&bytes)
        }
    }
}

fn before(rank: u32, ranks: u32) -> u32 {
    (rank + ranks - 1) % ranks
}

fn pattern(comm: &dyn Comm, shape: &Shape) -> Pattern {
    let reduces = kind(&shape.operation).is_some_and(Kind::reduces);
    Pattern { dtype: shape.dtype, op: reduces.then_some(shape.op), ranks: comm.size() }
}

fn collective(
    comm: &dyn Comm,
    shape: &Shape,
    kind: Kind,
    buffer: &dyn Fn(usize) -> Result<Buffer, CommError>,
) -> Result<OwnedCall, CommError> {
    let counts = Counts::Equal(shape.count);
    // What goes in of a broadcast is what comes out of it.
    let placed = shape.in_place || kind == Kind::Broadcast;
    let asked = Call {
        kind,
        dtype: shape.dtype,
        op: shape.op,
        root: shape.root,
        tag: 0,
        counts: counts.clone(),
        input: (!placed).then_some(&[]),
        output: &mut [],
    };
    let (input, output) = asked.lengths(comm.rank() as usize, comm.size() as usize);
    let size = shape.dtype.size();
    let call = OwnedCall::new(kind, shape.dtype, counts, buffer(output * size)?);
    let input = if placed { None } else { Some(buffer(input * size)?) };
    Ok(OwnedCall { op: shape.op, root: shape.root, input, ..call })
}

/// A message to the next rank, and one from the rank before.
fn messages(
    comm: &dyn Comm,
    shape: &Shape,
    buffer: &dyn Fn(usize) -> Result<Buffer, CommError>,
) -> Result<[OwnedCall; 2], CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, other| -> Result<OwnedCall, CommError> {
        let buffer = buffer(shape.count * shape.dtype.size())?;
        let call = OwnedCall::new(kind, shape.dtype, Counts::Equal(shape.count), buffer);
        Ok(OwnedCall { root: other, ..call })
    };
    Ok([message(Kind::Send, (rank + 1) % ranks)?, message(Kind::Receive, before(rank, ranks))?])
}
