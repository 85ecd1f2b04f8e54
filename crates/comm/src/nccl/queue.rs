//! What the library is asked to do for a call, on memory of the device.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{Nccl, explain};
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp};

/// The library's number for a type; it has none for 16-bit integers.
pub(super) fn number(dtype: DType) -> Option<c_int> {
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

/// The library's number for a reduction.
fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Average => 4,
    }
}

/// Where on the device begins what this rank gives, and what it gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spots {
    pub from: *const c_void,
    pub to: *mut c_void,
}

/// Where the parts of the ranks are, in bytes.
pub(super) struct Parts<'a> {
    pub counts: &'a Counts<'a>,
    pub size: usize,
}

impl Parts<'_> {
    pub fn at(&self, rank: usize) -> usize {
        self.counts.offset(rank) * self.size
    }

    pub fn bytes(&self, rank: usize) -> usize {
        self.counts.of(rank) * self.size
    }

    fn part(&self, rank: usize) -> (usize, usize) {
        (self.at(rank), self.bytes(rank))
    }

    fn sent_to(&self, rank: usize) -> (usize, usize) {
        let (at, count) = self.counts.sent_to(rank);
        (at * self.size, count * self.size)
    }
}

/// Bytes that go to another rank, or come from it.
struct Message {
    with: usize,
    address: *mut c_void,
    bytes: usize,
}

impl Nccl {
    /// Has the library queue what the call asks for.
    pub(super) fn queue(
        &self,
        call: &Call<'_>,
        parts: &Parts<'_>,
        spots: Spots,
    ) -> Result<(), CommError> {
        let functions = &self.device.functions;
        // SAFETY: the functions take no arguments.
        explain(functions, "a group", unsafe { (functions.group_start)() })?;
        let queued = match call.kind {
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => {
                self.reductions(call, parts, spots)
            }
            Kind::AllGather if matches!(parts.counts, Counts::Equal(_)) => {
                self.gathered(parts, spots)
            }
            Kind::Broadcast | Kind::AllGather => self.broadcasts(call, parts, spots),
            Kind::Barrier => self.meet(spots),
            _ => self.messages(call, parts, spots),
        };
        // SAFETY: as before.
        let ended = explain(functions, call.kind.name(), unsafe { (functions.group_end)() });
        queued.and(ended)
    }

    fn reductions(
        &self,
        call: &Call<'_>,
        parts: &Parts<'_>,
        Spots { from, to }: Spots,
    ) -> Result<(), CommError> {
        let (functions, stream) = (&self.device.functions, self.device.stream);
        let (dtype, op) = (number(call.dtype).unwrap_or(BYTES), reduction(call.op));
        let one = |from: *const c_void, count: usize, root: u32| {
            let to = if root == self.rank { to } else { null_mut() };
            // SAFETY: there is room for the counts, which all ranks have the same; only the root's
            // is written.
            unsafe {
                (functions.reduce)(from, to, count, dtype, op, root as c_int, self.raw, stream)
            }
        };
        let code = match (call.kind, parts.counts) {
            // SAFETY: as before.
            (Kind::AllReduce, counts) => unsafe {
                (functions.all_reduce)(from, to, counts.of(0), dtype, op, self.raw, stream)
            },
            (Kind::Reduce, counts) => one(from, counts.of(0), call.root),
            // SAFETY: as before.
            (_, Counts::Equal(count)) => unsafe {
                (functions.reduce_scatter)(from, to, *count, dtype, op, self.raw, stream)
            },
            (_, counts) => {
                let part = |rank: usize| {
                    one(from.wrapping_byte_add(parts.at(rank)), counts.of(rank), rank as u32)
                };
                let codes = (0..self.peers.len()).filter(|&r| counts.of(r) > 0).map(part);
                codes.fold(0, |all, code| if all == 0 { code } else { all })
            }
        };
        explain(functions, call.kind.name(), code)
    }

    /// An all-gather of equal parts.
    fn gathered(&self, parts: &Parts<'_>, Spots { from, to }: Spots) -> Result<(), CommError> {
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: there is room for all parts.
        let code =
            unsafe { (functions.all_gather)(from, to, parts.bytes(0), BYTES, self.raw, stream) };
        explain(functions, "all-gather", code)
    }

    /// A broadcast, or one of each rank's part.
    fn broadcasts(
        &self,
        call: &Call<'_>,
        parts: &Parts<'_>,
        Spots { from, to }: Spots,
    ) -> Result<(), CommError> {
        let whole = call.kind == Kind::Broadcast;
        let roots = if whole { call.root..call.root + 1 } else { 0..self.peers.len() as u32 };
        for root in roots {
            let rank = if whole { 0 } else { root as usize };
            let (at, bytes) = parts.part(rank);
            if bytes == 0 {
                continue;
            }
            let (functions, stream) = (&self.device.functions, self.device.stream);
            let to = to.wrapping_byte_add(at);
            // SAFETY: there is room for the bytes; what is not the root's input is not read.
            let code = unsafe {
                (functions.broadcast)(from, to, bytes, BYTES, root as c_int, self.raw, stream)
            };
            explain(functions, call.kind.name(), code)?;
        }
        Ok(())
    }

    fn meet(&self, Spots { from, to }: Spots) -> Result<(), CommError> {
        let functions = &self.device.functions;
        // SAFETY: there is room for one number.
        let code =
            unsafe { (functions.all_reduce)(from, to, 1, BYTES, 0, self.raw, self.device.stream) };
        explain(functions, "barrier", code)
    }

    /// Gather, scatter, all-to-all, send and receive: who sends what to whom.
    fn messages(&self, call: &Call<'_>, parts: &Parts<'_>, spots: Spots) -> Result<(), CommError> {
        let (me, root) = (self.rank as usize, call.root as usize);
        let own = (0, parts.bytes(me));
        let give = |with: usize, (at, bytes): (usize, usize)| Message {
            with,
            address: spots.from.cast_mut().wrapping_byte_add(at),
            bytes,
        };
        let take = |with: usize, (at, bytes): (usize, usize)| Message {
            with,
            address: spots.to.wrapping_byte_add(at),
            bytes,
        };
        let at_root = (0..self.peers.len()).filter(|_| me == root);
        let (mut gives, mut takes): (Vec<Message>, Vec<Message>) = match call.kind {
            Kind::Send => (vec![give(root, own)], Vec::new()),
            Kind::Receive => (Vec::new(), vec![take(root, own)]),
            Kind::Gather => {
                (vec![give(root, own)], at_root.map(|r| take(r, parts.part(r))).collect())
            }
            Kind::Scatter => {
                (at_root.map(|r| give(r, parts.part(r))).collect(), vec![take(root, own)])
            }
            _ => {
                let all = 0..self.peers.len();
                let gives = all.clone().map(|r| give(r, parts.sent_to(r))).collect();
                (gives, all.map(|r| take(r, parts.part(r))).collect())
            }
        };
        // In place, a rank's own part is where it belongs.
        let at = |all: &[Message]| all.iter().find(|m| m.with == me).map(|m| m.address);
        if at(&gives).is_some() && at(&gives) == at(&takes) {
            gives.retain(|message| message.with != me);
            takes.retain(|message| message.with != me);
        }
        gives.iter().try_for_each(|message| self.send(message))?;
        takes.iter().try_for_each(|message| self.receive(message))
    }

    fn send(&self, &Message { with, address, bytes }: &Message) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: the bytes are there.
        let code =
            unsafe { (functions.send)(address, bytes, BYTES, with as c_int, self.raw, stream) };
        explain(functions, "send", code)
    }

    fn receive(&self, &Message { with, address, bytes }: &Message) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        let (functions, stream) = (&self.device.functions, self.device.stream);
        // SAFETY: there is room for the bytes.
        let code =
            unsafe { (functions.receive)(address, bytes, BYTES, with as c_int, self.raw, stream) };
        explain(functions, "receive", code)
    }
}
