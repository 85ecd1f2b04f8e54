//! Calls on host memory, which go through the device and back, and calls on memory of the device.

use std::ffi::c_void;

use super::Nccl;
use super::queue::{Message, Parts, Spots, number};
use crate::{Buffer, Call, CommError, Counts, DType, Kind, OwnedCall, ReduceOp, kernel};

impl Nccl {
    /// Puts the call's input on the device, has it done there, and fetches the output.
    pub(super) fn staged(&mut self, call: Call<'_>) -> Result<(), CommError> {
        if call.kind.reduces() && number(call.dtype).is_none() {
            return self.reduced_here(call);
        }
        self.agree_on_counts(&call)?;
        let counts = call.counts.clone();
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let parts = Parts { counts: &counts, size: call.dtype.size() };
        let input = given(&call, &parts, rank);
        self.make_room(input.len().max(4), call.output.len().max(4))?;
        self.device.put(self.input.start, input)?;
        // An average is a sum that is divided here, as all other communicators do it.
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let spots = Spots { from: self.input.start, to: self.output.start };
        let asked = Call { op, counts: counts.clone(), input: call.input, output: &mut [], ..call };
        self.queue(&asked, &parts, spots)?;
        let place = result(&call, &parts, rank);
        let got = &mut call.output[place];
        // To fetch into memory that the device does not know waits for all that is queued, however
        // long: first it must be done.
        self.settle(call.kind, &[call.root])?;
        self.device.fetch(got, self.output.start)?;
        self.device.wait()?;
        if call.kind.reduces() {
            kernel::finish(call.dtype, call.op, ranks as u32, got);
        }
        Ok(())
    }

    /// Sends and receives messages at once. As the library has no tags, those between two ranks go in
    /// the order of theirs.
    pub(super) fn staged_messages(&mut self, mut calls: Vec<Call<'_>>) -> Result<(), CommError> {
        calls.sort_by_key(|call| call.tag);
        let (sends, mut receives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| call.kind == Kind::Send);
        let given = |call: &Call<'_>| call.input.map_or(call.output.len(), <[u8]>::len);
        let (gives, input) = laid_out(&sends, given);
        let (takes, output) = laid_out(&receives, |call| call.output.len());
        self.make_room(input.max(4), output.max(4))?;
        let gives = at(gives, self.input.start);
        let takes = at(takes, self.output.start);
        for (call, message) in sends.iter().zip(&gives) {
            self.device.put(message.address, call.input.unwrap_or(call.output))?;
        }
        self.queue_messages(&gives, &takes)?;
        self.settle(Kind::Send, &partners(&gives, &takes))?;
        for (call, message) in receives.iter_mut().zip(&takes) {
            self.device.fetch(call.output, message.address)?;
        }
        self.device.wait()
    }

    /// Has a call done on buffers of this rank's device, where they lie, so many times.
    pub(super) fn on_device(&mut self, owned: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        let call = owned.described();
        if done_by_host(&call) {
            return (0..times).try_for_each(|_| self.through_host(owned));
        }
        self.agree_on_counts(&call)?;
        for batch in self.batches(owned.output.len(), times) {
            (0..batch).try_for_each(|_| self.queue_on_device(owned))?;
            self.settle(call.kind, &[call.root])?;
        }
        Ok(())
    }

    /// How many calls are queued at once, so that none of a batch is late because of the others, and
    /// the runtime, which takes some thousand, does not keep us.
    fn batches(&self, bytes: usize, times: u32) -> impl Iterator<Item = u32> + use<> {
        const MOST: u64 = 256;
        // Bytes a second that any network carries.
        const SLOW: u64 = 100_000_000;
        let in_time = self.settings.desync_after.as_secs() / 4 * SLOW;
        let batch = (in_time / (bytes as u64).max(1)).clamp(1, MOST) as u32;
        (0..times).step_by(batch as usize).map(move |done| batch.min(times - done))
    }

    /// Has the library queue a call on buffers of this rank's device.
    fn queue_on_device(&mut self, owned: &OwnedCall) -> Result<(), CommError> {
        let call = owned.described();
        let parts = Parts { counts: &owned.counts, size: call.dtype.size() };
        let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
        let output = address(&owned.output);
        let input = owned.input.as_ref().filter(|_| call.kind != Kind::Broadcast).map(address);
        let mut spots = spots(&call, &parts, self.rank as usize, input, output);
        if call.kind == Kind::Barrier {
            spots = Spots { from: self.input.start, to: self.output.start };
        }
        if call.kind == Kind::AllToAll && input.is_none() {
            // What comes would overwrite what has yet to go.
            self.make_room(owned.output.len().max(4), 4)?;
            self.device.copy(self.input.start, output, owned.output.len())?;
            spots.from = self.input.start;
        }
        self.queue(&call, &parts, spots)?;
        self.accepted(call.kind)
    }

    /// Messages from and to buffers of this rank's device, so many times.
    pub(super) fn messages_on_device(
        &mut self,
        calls: &[OwnedCall],
        times: u32,
    ) -> Result<(), CommError> {
        let message = |call: &OwnedCall| {
            let buffer = call.input.as_ref().unwrap_or(&call.output);
            let address = buffer.address().as_ptr().cast();
            Message { with: call.root as usize, address, bytes: buffer.len() }
        };
        let of = |kind: Kind| {
            let mut some: Vec<&OwnedCall> = calls.iter().filter(|c| c.kind == kind).collect();
            some.sort_by_key(|call| call.tag);
            some.into_iter().map(message).collect::<Vec<_>>()
        };
        let (gives, takes) = (of(Kind::Send), of(Kind::Receive));
        let partners = partners(&gives, &takes);
        let bytes = gives.iter().chain(&takes).map(|message| message.bytes).sum();
        for batch in self.batches(bytes, times) {
            for _ in 0..batch {
                self.queue_messages(&gives, &takes)?;
                self.accepted(Kind::Send)?;
            }
            self.settle(Kind::Send, &partners)?;
        }
        Ok(())
    }

    /// What the library cannot do on the device, or does otherwise.
    fn through_host(&mut self, owned: &mut OwnedCall) -> Result<(), CommError> {
        let copied = |buffer: &Buffer| {
            let mut bytes = vec![0u8; buffer.len()];
            buffer.fetch(&mut bytes).map(|()| bytes)
        };
        let mut output = copied(&owned.output)?;
        let input = owned.input.as_ref().map(copied).transpose()?;
        let call = owned.described();
        self.staged(Call { input: input.as_deref(), output: &mut output, ..call })?;
        owned.output.put(&output)
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

/// With whom messages are exchanged.
fn partners(gives: &[Message], takes: &[Message]) -> Vec<u32> {
    gives.iter().chain(takes).map(|message| message.with as u32).collect()
}

/// Messages one after the other in one memory, and how long it must be.
fn laid_out(
    calls: &[Call<'_>],
    bytes: impl Fn(&Call<'_>) -> usize,
) -> (Vec<(usize, usize, usize)>, usize) {
    let mut end = 0;
    let place = |call: &Call<'_>| {
        let start = end;
        end += bytes(call).next_multiple_of(64);
        (call.root as usize, start, bytes(call))
    };
    (calls.iter().map(place).collect(), end)
}

/// The same where that memory is.
fn at(places: Vec<(usize, usize, usize)>, start: *mut c_void) -> Vec<Message> {
    let message =
        |(with, offset, bytes)| Message { with, address: start.wrapping_byte_add(offset), bytes };
    places.into_iter().map(message).collect()
}

/// What goes through the host even if it lies on the device: 16-bit integers are reduced there, and
/// averages of integers divided, for old versions of the library take signed ones for unsigned.
fn done_by_host(call: &Call<'_>) -> bool {
    let float = matches!(call.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    let average = call.op == ReduceOp::Average && !float;
    call.kind.reduces() && (number(call.dtype).is_none() || average)
}

/// Where on the device begins what a rank gives and what it gets, in place and not.
fn spots(
    call: &Call<'_>,
    parts: &Parts<'_>,
    rank: usize,
    input: Option<*mut c_void>,
    output: *mut c_void,
) -> Spots {
    let own = output.wrapping_byte_add(parts.at(rank));
    let root = call.root as usize == rank;
    match (input, call.kind) {
        (Some(input), _) => Spots { from: input, to: output },
        (None, Kind::AllGather) => Spots { from: own, to: output },
        (None, Kind::Gather) if root => Spots { from: own, to: output },
        (None, Kind::ReduceScatter) => Spots { from: output, to: own },
        (None, Kind::Scatter) if root => Spots { from: output, to: own },
        (None, _) => Spots { from: output, to: output },
    }
}

/// What this rank puts on the device.
fn given<'a>(call: &'a Call<'_>, parts: &Parts<'_>, rank: usize) -> &'a [u8] {
    let own = parts.at(rank)..parts.at(rank) + parts.bytes(rank);
    let root = call.root as usize == rank;
    match (call.input, call.kind) {
        (_, Kind::Broadcast) if root => &*call.output,
        (_, Kind::Broadcast | Kind::Receive | Kind::Barrier) => &[],
        (Some(input), _) => input,
        (None, Kind::Scatter) if !root => &[],
        (None, Kind::AllGather) => &call.output[own],
        (None, Kind::Gather) if root => &call.output[own],
        (None, _) => &*call.output,
    }
}

/// Where in the output what this rank gets belongs. On the device it is at the beginning.
fn result(call: &Call<'_>, parts: &Parts<'_>, rank: usize) -> std::ops::Range<usize> {
    let root = call.root as usize == rank;
    let own = parts.at(rank)..parts.at(rank) + parts.bytes(rank);
    let placed = call.input.is_none();
    match call.kind {
        Kind::Send => 0..0,
        Kind::Reduce | Kind::Gather if !root => 0..0,
        Kind::ReduceScatter if placed => own,
        Kind::Scatter if placed && root => own,
        _ => 0..call.output.len(),
    }
}
