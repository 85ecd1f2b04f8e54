//! Runs a [`Program`] on a [`Transport`]: round after round, copies at once, messages posted
//! together and waited for together.

mod cut;
pub mod plain;

use std::time::Duration;

use crate::buffer::Buffer;
use crate::schedule::{Piece, Place, Program, Round, Step};
use crate::transport::{Landing, Lane, Ticket, Transport};
use crate::{Call, CommError, Kind, ReduceOp, kernel};
use cut::Cut;

/// How long a transport is let wait at once; it knows itself when it was too long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does a collective in which all take part, as the program says.
pub fn run(
    transport: &mut dyn Transport,
    call: Call<'_>,
    program: &Program,
) -> Result<(), CommError> {
    let ended = rounds(&mut *transport, call, program);
    // The others know what the transport knows, but not what is wrong with a program.
    if let Err(error @ CommError::System { .. }) = &ended {
        (transport.abort())(&error.to_string());
    }
    ended
}

fn rounds(
    transport: &mut dyn Transport,
    call: Call<'_>,
    program: &Program,
) -> Result<(), CommError> {
    transport.begin(call.signature(transport.ranks() as usize))?;
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let (dtype, op) = (call.dtype, call.op);
    let cut = Cut::new(&call, program.blocks, rank, ranks);
    let mut memory = Memory::new(call, program, &cut);
    let mut open = Open { transport, tickets: 0 };
    for round in &program.rounds {
        open.round(round, &cut, &memory, Landing::Reduce(dtype, op))?;
    }
    open.transport.end();
    if op == ReduceOp::Average
        && cut.kind.reduces()
        && let Some(result) = memory.result(&cut, rank)
    {
        kernel::finish(dtype, op, ranks, result);
    }
    Ok(())
}

/// Sends to ranks and receives from them, all at once.
pub fn messages(transport: &mut dyn Transport, calls: Vec<Call<'_>>) -> Result<(), CommError> {
    let (sends, receives): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|call| call.kind == Kind::Send);
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
    open.wait()
}

/// The call's buffers. Raw, for a program reads one part of a buffer while another is written.
struct Memory<'a> {
    input: (*const u8, usize),
    output: (*mut u8, usize),
    scratch: (*mut u8, usize),
    /// Whose the scratch is.
    _room: Buffer,
    lent: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    fn new(call: Call<'a>, program: &Program, cut: &Cut<'_>) -> Self {
        let output = (call.output.as_mut_ptr(), call.output.len());
        let input = call.input.map_or((output.0.cast_const(), output.1), |i| (i.as_ptr(), i.len()));
        let mut room = Buffer::zeroed(if needs_scratch(program) { cut.whole() } else { 0 });
        let scratch = (room.bytes_mut().as_mut_ptr(), room.bytes().len());
        Self { input, output, scratch, _room: room, lent: std::marker::PhantomData }
    }

    /// Where a piece is, to be read.
    fn source(&self, cut: &Cut<'_>, piece: &Piece) -> Result<*const [u8], CommError> {
        let (start, length) = match piece.place {
            Place::Input => self.input,
            Place::Output => (self.output.0.cast_const(), self.output.1),
            Place::Scratch => (self.scratch.0.cast_const(), self.scratch.1),
        };
        let range = cut.range(piece).filter(|range| range.end <= length);
        let range = range.ok_or_else(|| outside(cut, piece))?;
        // SAFETY: the range ends within the buffer.
        let start = unsafe { start.add(range.start) };
        Ok(std::ptr::slice_from_raw_parts(start, range.len()))
    }

    /// Where a piece is, to be written.
    fn target(&self, cut: &Cut<'_>, piece: &Piece) -> Result<*mut [u8], CommError> {
        if piece.place == Place::Input && !piece.blocks.is_empty() {
            return Err(outside(cut, piece));
        }
        // Output and scratch were made of pointers that may be written through.
        self.source(cut, piece).map(<*const [u8]>::cast_mut)
    }

    /// What the rank gets, once all is done.
    fn result(&mut self, cut: &Cut<'_>, rank: u32) -> Option<&mut [u8]> {
        let blocks = match cut.kind {
            Kind::ReduceScatter => rank..rank + 1,
            _ => 0..cut.shares(),
        };
        let range = cut.range(&Piece { place: Place::Output, blocks })?;
        // SAFETY: nothing is posted any more, and the output was lent to be written.
        Some(unsafe { std::slice::from_raw_parts_mut(self.output.0.add(range.start), range.len()) })
    }
}

fn needs_scratch(program: &Program) -> bool {
    let scratch = |piece: &Piece| piece.place == Place::Scratch;
    program.rounds.iter().flatten().any(|step| match step {
        Step::Send { what, .. } => scratch(what),
        Step::Receive { into, .. } => scratch(into),
        Step::Copy { from, to } => scratch(from) || scratch(to),
    })
}

fn outside(cut: &Cut<'_>, piece: &Piece) -> CommError {
    let what = format!("the program of {}", cut.kind.name());
    CommError::System { what, why: format!("there is no {piece:?} on this rank") }
}

/// What is posted and not yet done. It is cancelled when this is dropped, for the memory is only
/// lent.
struct Open<'t> {
    transport: &'t mut dyn Transport,
    tickets: usize,
}

impl Open<'_> {
    fn round(
        &mut self,
        round: &Round,
        cut: &Cut<'_>,
        memory: &Memory<'_>,
        reduced: Landing,
    ) -> Result<(), CommError> {
        // Receives first: what comes early then has a place already.
        for step in round {
            if let Step::Receive { from, into, reduce } = step {
                let into = memory.target(cut, into)?;
                let landing = if *reduce { reduced } else { Landing::Replace };
                // SAFETY: the memory lives longer than we, who wait or cancel, and no other step of
                // the round reads or writes what this one writes.
                unsafe { self.transport.post_receive(*from, Lane::Call, into, landing) }?;
                self.tickets += 1;
            }
        }
        for step in round {
            if let Step::Send { to, what } = step {
                let what = memory.source(cut, what)?;
                // SAFETY: as above; nobody writes what is sent.
                unsafe { self.transport.post_send(*to, Lane::Call, what) }?;
                self.tickets += 1;
            }
        }
        for step in round {
            if let Step::Copy { from, to } = step {
                let (from, to) = (memory.source(cut, from)?, memory.target(cut, to)?);
                if from.len() != to.len() {
                    let what = format!("the program of {}", cut.kind.name());
                    let why = format!("{} bytes do not fit {}", from.len(), to.len());
                    return Err(CommError::System { what, why });
                }
                // SAFETY: both are in buffers of the call; they may overlap.
                unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), from.len()) };
            }
        }
        self.wait()
    }

    /// Until all that is posted is done.
    fn wait(&mut self) -> Result<(), CommError> {
        let mut done: Vec<Ticket> = Vec::new();
        while self.tickets > 0 {
            self.transport.progress(PATIENCE, &mut done)?;
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
