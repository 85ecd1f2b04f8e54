//! Runs a [`Program`] on a [`Transport`]: whatever can be done is posted, and waited for together.

mod agree;
mod cut;
mod expected;
mod flow;
mod memory;
mod plan;

use std::time::Duration;

use crate::schedule::Program;
use crate::transport::{Landing, Lane, Ticket, Transport};
use crate::{Call, CommError, DType, Kind, ReduceOp, kernel};
use cut::Cut;
use expected::{Expected, in_elements};
use flow::{Act, Flow, Id, Work};
use memory::Memory;
pub use memory::Room;
pub use plan::Planner;

/// How long a transport is let wait at once; it knows itself when it was too long.
const PATIENCE: Duration = Duration::from_secs(1);

/// What of a long message is done at once. It should still be in a fast cache when it is passed on,
/// and be long enough that a message more costs nothing.
const SEGMENT: usize = 256 << 10;

/// Does a collective in which all take part, as the program says, with scratch room from `room`.
pub fn run(
    transport: &mut dyn Transport,
    call: Call<'_>,
    program: &Program,
    room: &mut Room,
) -> Result<(), CommError> {
    run_in_segments(transport, call, program, room, SEGMENT)
}

/// The same with segments of another length, a multiple of 8 that is the same on all ranks.
pub fn run_in_segments(
    transport: &mut dyn Transport,
    call: Call<'_>,
    program: &Program,
    room: &mut Room,
    segment: usize,
) -> Result<(), CommError> {
    let ended = steps(&mut *transport, call, program, room, segment);
    // The others know what the transport knows, but not what is wrong with a program or its counts.
    if let Err(error @ (CommError::System { .. } | CommError::Unmatched { .. })) = &ended {
        (transport.abort())(&error.to_string());
    }
    ended
}

fn steps(
    transport: &mut dyn Transport,
    call: Call<'_>,
    program: &Program,
    room: &mut Room,
    segment: usize,
) -> Result<(), CommError> {
    transport.begin(call.signature(transport.ranks() as usize))?;
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let (dtype, op) = (call.dtype, call.op);
    // Only who gets a reduction divides it: in place, the others' bytes are still what they gave.
    let divides = op == ReduceOp::Average
        && call.kind.reduces()
        && (call.kind != Kind::Reduce || call.root == rank);
    agree::on_counts(&mut *transport, &call)?;
    let cut = Cut::new(&call, program, rank, ranks);
    let outside = |piece| {
        let what = format!("the program of {}", cut.kind.name());
        CommError::System { what, why: format!("there is no {piece:?} on this rank") }
    };
    let flow = Flow::new(program, &cut, segment).map_err(outside)?;
    let mut memory = Memory::new(call, &cut, room);
    let open = Open { transport, tickets: 0 };
    Doing { open, flow, posted: Vec::new() }.all(&memory, (dtype, op))?;
    transport.end();
    if divides && let Some(result) = cut.result() {
        kernel::finish(dtype, op, ranks, memory.result(result));
    }
    Ok(())
}

/// Sends to ranks and receives from them, all at once.
pub fn messages(transport: &mut dyn Transport, calls: Vec<Call<'_>>) -> Result<(), CommError> {
    messages_beside(transport, calls, &mut || Ok(PATIENCE))
}

/// The same while something else goes on, which has a turn again and again, and says how long it
/// can be left alone.
pub(crate) fn messages_beside(
    transport: &mut dyn Transport,
    calls: Vec<Call<'_>>,
    beside: &mut dyn FnMut() -> Result<Duration, CommError>,
) -> Result<(), CommError> {
    let (sends, receives): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|call| call.kind == Kind::Send);
    let expected: Vec<Expected> = receives.iter().map(Expected::of).collect();
    let mut open = Open { transport, tickets: 0 };
    // Receives first: what comes early then has a place already.
    for call in receives {
        let (lane, into): (_, *mut [u8]) = (Lane::Tag(call.tag), call.output);
        // SAFETY: the call lends its buffers for longer than `open` lives, which waits for the
        // operation or cancels it.
        unsafe { open.transport.post_receive(call.root, lane, into, Landing::Replace) }?;
        open.tickets += 1;
    }
    for call in sends {
        let bytes: *const [u8] = call.input.unwrap_or(call.output);
        // SAFETY: as above.
        unsafe { open.transport.post_send(call.root, Lane::Tag(call.tag), bytes) }?;
        open.tickets += 1;
    }
    let ended = open.wait_beside(beside);
    drop(open);
    let ended = ended.map_err(|error| in_elements(error, &expected));
    if let Err(error @ CommError::Unmatched { .. }) = &ended {
        (transport.abort())(&error.to_string());
    }
    ended
}

/// A program that is being done.
struct Doing<'t> {
    open: Open<'t>,
    flow: Flow,
    posted: Vec<(Ticket, Id)>,
}

impl Doing<'_> {
    fn all(&mut self, memory: &Memory<'_>, of: (DType, ReduceOp)) -> Result<(), CommError> {
        let mut done: Vec<Ticket> = Vec::new();
        while !self.flow.is_over() {
            let mut patience = PATIENCE;
            while let Some((id, work)) = self.flow.take() {
                if work.act == Act::Copy {
                    memory.copy(&work)?;
                    self.flow.done(id);
                    // Messages should not wait for the next one.
                    patience = Duration::ZERO;
                    break;
                }
                let ticket = self.post(&work, memory, of)?;
                self.open.tickets += 1;
                self.posted.push((ticket, id));
            }
            if self.open.tickets == 0 {
                continue;
            }
            self.open.transport.progress(patience, &mut done)?;
            self.open.tickets = self.open.tickets.saturating_sub(done.len());
            for ticket in done.drain(..) {
                if let Some(at) = self.posted.iter().position(|(posted, _)| *posted == ticket) {
                    self.flow.done(self.posted.swap_remove(at).1);
                }
            }
        }
        Ok(())
    }

    fn post(
        &mut self,
        work: &Work,
        memory: &Memory<'_>,
        (dtype, op): (DType, ReduceOp),
    ) -> Result<Ticket, CommError> {
        let transport = &mut *self.open.transport;
        let (reads, writes) = (memory.source(&work.reads)?, memory.target(&work.writes)?);
        // SAFETY: the memory lives longer than `open`, which waits or cancels, and the flow begins
        // nothing that reads or writes what is written, or writes what is read, before this is done.
        unsafe {
            match work.act {
                Act::Send(to) => transport.post_send(to, Lane::Call, reads),
                Act::Receive(from) if work.reads.is_none() => {
                    transport.post_receive(from, Lane::Call, writes, Landing::Replace)
                }
                Act::Receive(from) if work.reads == work.writes => {
                    transport.post_receive(from, Lane::Call, writes, Landing::Reduce(dtype, op))
                }
                _ => {
                    let Act::Receive(from) = work.act else { return Err(memory::nothing()) };
                    transport.post_reduce(from, Lane::Call, writes, reads, dtype, op)
                }
            }
        }
    }
}

/// What is posted and not yet done. It is cancelled when this is dropped, for the memory is only
/// lent.
struct Open<'t> {
    transport: &'t mut dyn Transport,
    tickets: usize,
}

impl Open<'_> {
    /// Until all that is posted is done.
    fn wait(&mut self) -> Result<(), CommError> {
        self.wait_beside(&mut || Ok(PATIENCE))
    }

    fn wait_beside(
        &mut self,
        beside: &mut dyn FnMut() -> Result<Duration, CommError>,
    ) -> Result<(), CommError> {
        let mut done: Vec<Ticket> = Vec::new();
        while self.tickets > 0 {
            self.transport.progress(beside()?, &mut done)?;
            self.tickets = self.tickets.saturating_sub(done.len());
            done.clear();
        }
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.tickets > 0 {
            self.transport.cancel();
        }
    }
}
