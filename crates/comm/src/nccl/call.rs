//! Calls on host memory, staged through the device.

use std::ffi::{c_int, c_void};

use super::{Nccl, explain};
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp, kernel};

/// The library's number for a type; it has none for 16-bit integers.
fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
        DType::I16 => return None,
    })
}

/// The library's number for bytes.
const BYTES: c_int = 1;

/// The library's number for a reduction. An average is a sum that is divided here: its own is the
/// sum of what was divided, which is not the same.
fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum | ReduceOp::Average => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}

/// Where the parts of the ranks are, in bytes.
struct Parts<'a> {
    counts: &'a Counts<'a>,
    size: usize,
}

impl Parts<'_> {
    fn at(&self, rank: usize) -> usize {
        self.counts.offset(rank) * self.size
    }

    fn bytes(&self, rank: usize) -> usize {
        self.counts.of(rank) * self.size
    }
}

impl Nccl {
    /// Puts the call's input on the device, has it done there, and fetches the output.
    pub(super) fn staged(&mut self, call: Call<'_>) -> Result<(), CommError> {
        if call.kind.reduces() && number(call.dtype).is_none() {
            return self.reduced_here(call);
        }
        let counts = call.counts.clone();
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let parts = Parts { counts: &counts, size: call.dtype.size() };
        let (input, output) = spans(&call, &parts, rank, ranks);
        self.make_room(input.len().max(4), output.max(4))?;
        self.device.put(self.input.start, input)?;
        self.queue(&call, &parts)?;
        let place = result(&call, &parts, rank);
        let got = &mut call.output[place];
        self.device.fetch(got, self.output.start)?;
        self.settle(call.kind.name())?;
        if call.kind.reduces() {
            kernel::finish(call.dtype, call.op, ranks as u32, got);
        }
        Ok(())
    }

    fn queue(&self, call: &Call<'_>, parts: &Parts<'_>) -> Result<(), CommError> {
        let functions = &self.device.functions;
        // SAFETY: the functions take no arguments.
        explain(functions, "a group", unsafe { (functions.group_start)() })?;
        let queued = match call.kind {
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => self.reductions(call, parts),
            Kind::AllGather if matches!(parts.counts, Counts::Equal(_)) => self.gathered(parts),
            Kind::Broadcast | Kind::AllGather => self.broadcasts(call, parts),
            Kind::Barrier => self.meet(),
            _ => self.messages(call, parts),
        };
        // SAFETY: as before.
        let ended = explain(functions, call.kind.name(), unsafe { (functions.group_end)() });
        queued.and(ended)
    }

    fn reductions(&self, call: &Call<'_>, parts: &Parts<'_>) -> Result<(), CommError> {
        let (functions, stream) = (&self.device.functions, self.device.stream);
        let (dtype, op) = (number(call.dtype).unwrap_or(BYTES), reduction(call.op));
        let one = |from: *const c_void, count: usize, root: u32| {
            // SAFETY: there is room for the counts, which all ranks have the same.
            unsafe {
                let to = self.output.start;
                (functions.reduce)(from, to, count, dtype, op, root as c_int, self.raw, stream)
            }
        };
        let code = match (call.kind, parts.counts) {
            (Kind::AllReduce, counts) => {
                let count = counts.of(0);
                // SAFETY: as before.
                unsafe {
                    let (from, to) = (self.input.start, self.output.start);
                    (functions.all_reduce)(from, to, count, dtype, op, self.raw, stream)
                }
            }
            (Kind::Reduce, counts) => one(self.input.start, counts.of(0), call.root),
            (_, Counts::Equal(count)) => {
                // SAFETY: as before.
                unsafe {
                    let (from, to) = (self.input.start, self.output.start);
                    (functions.reduce_scatter)(from, to, *count, dtype, op, self.raw, stream)
                }
            }
            (_, counts) => {
                let part =
                    |rank: usize| one(self.input.at(parts.at(rank)), counts.of(rank), rank as u32);
                let codes = (0..self.peers.len()).filter(|&r| counts.of(r) > 0).map(part);
                codes.fold(0, |all, code| if all == 0 { code } else { all })
            }
        };
        explain(functions, call.kind.name(), code)
    }

    /// An all-gather of equal parts.
    fn gathered(&self, parts: &Parts<'_>) -> Result<(), CommError> {
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: there is room for all parts.
        let code = unsafe {
            let (from, to) = (self.input.start, self.output.start);
            (functions.all_gather)(from, to, parts.bytes(0), BYTES, self.raw, stream)
        };
        explain(functions, "all-gather", code)
    }

    /// A broadcast, or one of each rank's part.
    fn broadcasts(&self, call: &Call<'_>, parts: &Parts<'_>) -> Result<(), CommError> {
        let whole = call.kind == Kind::Broadcast;
        let roots = if whole { call.root..call.root + 1 } else { 0..self.peers.len() as u32 };
        for root in roots {
            let rank = if whole { 0 } else { root as usize };
            let (at, bytes) = (parts.at(rank), parts.bytes(rank));
            if bytes == 0 {
                continue;
            }
            let functions = &self.device.functions;
            // SAFETY: there is room for the bytes; what is not the root's input is not read.
            let code = unsafe {
                let (from, to) = (self.input.start, self.output.at(at));
                let root = root as c_int;
                (functions.broadcast)(from, to, bytes, BYTES, root, self.raw, self.device.stream)
            };
            explain(functions, call.kind.name(), code)?;
        }
        Ok(())
    }

    fn meet(&self) -> Result<(), CommError> {
        let functions = &self.device.functions;
        // SAFETY: there is room for one number.
        let code = unsafe {
            let (from, to) = (self.input.start, self.output.start);
            (functions.all_reduce)(from, to, 1, BYTES, 0, self.raw, self.device.stream)
        };
        explain(functions, "barrier", code)
    }

    /// Gather, scatter, all-to-all, send and receive: who sends what to whom.
    fn messages(&self, call: &Call<'_>, parts: &Parts<'_>) -> Result<(), CommError> {
        let (me, root) = (self.rank as usize, call.root as usize);
        let own = (0, parts.bytes(me));
        let all = 0..self.peers.len();
        let part = |rank: usize| (parts.at(rank), parts.bytes(rank));
        match call.kind {
            Kind::Send => self.send(root, own),
            Kind::Receive => self.receive(root, own),
            Kind::Gather => {
                self.send(root, own)?;
                let mut from = all.filter(|_| me == root);
                from.try_for_each(|rank| self.receive(rank, part(rank)))
            }
            Kind::Scatter => {
                let mut to = all.filter(|_| me == root);
                to.try_for_each(|rank| self.send(rank, part(rank)))?;
                self.receive(root, own)
            }
            _ => all.into_iter().try_for_each(|rank| {
                self.send(rank, sent_to(parts, rank))?;
                self.receive(rank, part(rank))
            }),
        }
    }

    fn send(&self, to: usize, (at, bytes): (usize, usize)) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: there is room for the bytes.
        let code = unsafe {
            (functions.send)(self.input.at(at), bytes, BYTES, to as c_int, self.raw, stream)
        };
        explain(functions, "send", code)
    }

    fn receive(&self, from: usize, (at, bytes): (usize, usize)) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: there is room for the bytes.
        let code = unsafe {
            (functions.receive)(self.output.at(at), bytes, BYTES, from as c_int, self.raw, stream)
        };
        explain(functions, "receive", code)
    }

    /// A reduction of a type that the library does not know: all is gathered, and reduced here.
    fn reduced_here(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let input = call.input.unwrap_or(call.output).to_vec();
        let mut all = vec![0; input.len() * ranks];
        self.staged(Call {
            kind: Kind::AllGather,
            dtype: DType::U8,
            counts: Counts::Equal(input.len()),
            input: Some(&input),
            output: &mut all,
            ..call
        })?;
        let (mut sum, inputs) = (vec![0; input.len()], all.chunks_exact(input.len().max(1)));
        let inputs: Vec<&[u8]> = inputs.collect();
        if !input.is_empty() {
            kernel::reduce_many(call.dtype, call.op, &mut sum, inputs.len(), |i| inputs[i]);
            kernel::finish(call.dtype, call.op, ranks as u32, &mut sum);
        }
        let parts = Parts { counts: &call.counts, size: call.dtype.size() };
        let place = result(&call, &parts, rank);
        let from = if call.kind == Kind::ReduceScatter { parts.at(rank) } else { 0 };
        let bytes = place.len();
        call.output[place].copy_from_slice(&sum[from..from + bytes]);
        Ok(())
    }
}

/// What an all-to-all sends to a rank.
fn sent_to(parts: &Parts<'_>, rank: usize) -> (usize, usize) {
    match parts.counts {
        Counts::Exchange { send, .. } => {
            let before: usize = send.iter().take(rank).sum();
            let count = send.get(rank).copied().unwrap_or(0);
            (before * parts.size, count * parts.size)
        }
        _ => (parts.at(rank), parts.bytes(rank)),
    }
}

/// What this rank puts on the device, and the bytes it needs there for what comes.
fn spans<'a>(
    call: &'a Call<'_>,
    parts: &Parts<'_>,
    rank: usize,
    ranks: usize,
) -> (&'a [u8], usize) {
    let all = parts.counts.total(ranks) * parts.size;
    let own = parts.at(rank)..parts.at(rank) + parts.bytes(rank);
    let root = call.root as usize == rank;
    let input: &[u8] = match (call.input, call.kind) {
        (Some(input), _) => input,
        (None, Kind::Broadcast | Kind::Scatter) if !root => &[],
        (None, Kind::Receive | Kind::Barrier) => &[],
        (None, Kind::AllGather) => &call.output[own],
        (None, Kind::Gather) if root => &call.output[own],
        (None, _) => &*call.output,
    };
    (input, all.max(call.output.len()).max(input.len()))
}

/// Where in the output what this rank gets belongs. On the device it is at the beginning.
fn result(call: &Call<'_>, parts: &Parts<'_>, rank: usize) -> std::ops::Range<usize> {
    let root = call.root as usize == rank;
    let own = parts.at(rank)..parts.at(rank) + parts.bytes(rank);
    let placed = call.input.is_none();
    match call.kind {
        Kind::Reduce | Kind::Gather if !root => 0..0,
        Kind::ReduceScatter if placed => own,
        Kind::Scatter if placed && root => own,
        _ => 0..call.output.len(),
    }
}
