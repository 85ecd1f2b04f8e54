//! Runs calls on host memory, which is staged through the device, and on device memory.

use std::ffi::c_void;

use super::NcclEngine;
use super::enqueue::{DeviceBuffers, Transfer, nccl_dtype};
use super::in_flight::Issued;
use crate::comm::SharedCalls;
use crate::gpu_runtime::{TimingEvent, trace};
use crate::reduce_kernel::{finalize, reduce_many};
use crate::{Buffer, Call, CallKind, Counts, DType, Event, OwnedCall, ReduceOp, Result};

/// Alignment in the staging buffer, whose first bytes are those of barriers.
const STAGING_ALIGNMENT: usize = 64;

impl NcclEngine {
    /// Connects the ranks of a communicator of two, as of a pipeline stage or a ring, for messages.
    /// NCCL connects ranks in their first message, and the host of the one waits for that of the
    /// other: early-posted receives would deadlock. It also fails if the first groups of two ranks do
    /// not mirror each other (NVIDIA/nccl#2057).
    pub(super) fn connect_pair(&mut self) -> Result {
        if self.peers.len() != 2 {
            return Ok(());
        }
        let (peer, bytes) = (1 - self.rank as usize, STAGING_ALIGNMENT / 2);
        let transfer = |offset: usize| {
            let address = address(&self.staging).wrapping_byte_add(offset);
            [Transfer { peer, address, bytes }]
        };
        let exchange = || self.enqueue_messages(&transfer(0), &transfer(bytes));
        self.grouped("connecting two ranks", exchange)?;
        self.track(Issued::new(&Vec::new(), 0), &[], None)?;
        self.wait_idle()
    }

    /// Runs calls on host memory as a group: copies their inputs to the device, runs there and copies
    /// the results back.
    pub(super) fn run_via_host(&mut self, mut calls: Vec<Call<'_>>, issued: &Issued) -> Result {
        let (rank, ranks) = (self.rank as usize, self.peers.len() as u32);
        // A copy from or to pageable memory blocks until the stream is idle, without a timeout.
        self.wait_idle()?;
        let bytes = |call: &Call| {
            let (input, result) = (call.contribution(rank), call.result_range(rank));
            input.len().next_multiple_of(STAGING_ALIGNMENT)
                + result.len().next_multiple_of(STAGING_ALIGNMENT)
        };
        self.reserve_staging(calls.iter().map(bytes).sum())?;
        let staged = self.copy_inputs(&calls)?;
        self.enqueue_group(&staged.iter().collect::<Vec<_>>(), &[], issued, None)?;
        self.wait_idle()?;
        for (call, staged) in calls.iter_mut().zip(&staged) {
            let range = call.result_range(rank);
            self.device.copy_to_host(&mut call.output[range], address(&staged.output))?;
        }
        self.device.synchronize()?;
        for call in calls.into_iter().filter(|call| call.kind.reduces()) {
            let range = call.result_range(rank);
            finalize(call.dtype, call.op, ranks, &mut call.output[range]);
        }
        Ok(())
    }

    /// Copies the inputs of calls to the staging buffer and returns the calls on it.
    fn copy_inputs(&self, calls: &[Call<'_>]) -> Result<Vec<OwnedCall>> {
        let rank = self.rank as usize;
        let mut offset = STAGING_ALIGNMENT;
        let mut take = |bytes: usize| {
            let range = self.staging.device_range(offset..offset + bytes);
            offset += bytes.next_multiple_of(STAGING_ALIGNMENT);
            range
        };
        let mut staged = Vec::new();
        for call in calls {
            let (input, counts) = (call.contribution(rank), call.counts.clone().into_owned());
            let output = take(call.result_range(rank).len())?;
            let mut copy = OwnedCall::new(call.kind, call.dtype, counts, output);
            (copy.root, copy.tag) = (call.root, call.tag);
            // An average is a sum divided on the host, as in all other communicators.
            copy.op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
            if !matches!(call.kind, CallKind::Broadcast | CallKind::Receive) {
                copy.input = Some(take(input.len())?);
            }
            let to = copy.input.as_ref().unwrap_or(&copy.output);
            self.device.copy_from_host(address(to), input)?;
            staged.push(copy);
        }
        Ok(staged)
    }

    /// Grows the staging buffer. Work in flight keeps the previous one, which is freed in stream
    /// order.
    pub(super) fn reserve_staging(&mut self, bytes: usize) -> Result {
        let bytes = STAGING_ALIGNMENT + bytes;
        if self.staging.len() < bytes {
            self.staging = self.gpu.buffer_on(&self.device, bytes.next_power_of_two())?;
        }
        Ok(())
    }

    /// Runs a group of calls on buffers of this rank's device. Those that NCCL supports are only
    /// enqueued.
    pub(super) fn run_on_device(&mut self, calls: &mut [OwnedCall], issued: &Issued) -> Result {
        let on_stream: Vec<&OwnedCall> = calls.iter().filter(|call| !needs_host(call)).collect();
        self.enqueue_group(&on_stream, &[], issued, None)?;
        let via_host = calls.iter_mut().filter(|call| needs_host(call));
        via_host.into_iter().try_for_each(|call| self.run_copied_to_host(call, issued))
    }

    /// Enqueues a group of calls on buffers of this rank's device, as one launch.
    pub(super) fn enqueue_group(
        &mut self,
        calls: &[&OwnedCall],
        after: &[Event],
        issued: &Issued,
        memory: Option<SharedCalls>,
    ) -> Result<Event> {
        self.wait_for_room()?;
        for event in after {
            // SAFETY: the stream is valid.
            unsafe { event.wait_on_stream(self.device.stream) }
                .map_err(|error| self.fail_dependent(error))?;
        }
        calls.iter().try_for_each(|call| self.check_counts(&call.without_buffers()))?;
        let (messages, collectives): (Vec<&OwnedCall>, Vec<_>) =
            calls.iter().partition(|call| call.kind.is_p2p());
        let (sends, recvs) =
            (transfers(&messages, CallKind::Send), transfers(&messages, CallKind::Receive));
        let buffers = self.stage_in_place(&collectives)?;
        let enqueue = |(call, buffers): (&&OwnedCall, DeviceBuffers)| {
            self.enqueue_operations(&call.without_buffers(), buffers)
        };
        if !calls.is_empty() {
            let start = self.trace_event()?;
            let name = issued.signature.kind.name();
            self.grouped(name, || {
                self.enqueue_messages(&sends, &recvs)?;
                collectives.iter().zip(buffers).try_for_each(enqueue)
            })?;
            if let (Some(start), Some(end)) = (start, self.trace_event()?) {
                trace::record("NCCL", name.to_owned(), start, end);
            }
        }
        self.track(issued.clone(), after, memory)
    }

    /// An event on the stream, if a trace is recorded. Events of captured work have no time.
    fn trace_event(&self) -> Result<Option<TimingEvent>> {
        if !trace::is_enabled() || self.device.is_capturing()? {
            return Ok(None);
        }
        // SAFETY: the stream is a stream of the device, which is current while a call is issued.
        Ok(unsafe { TimingEvent::record(&self.device.runtime, self.device.stream) })
    }

    /// The addresses of collectives. The input of an in-place all-to-all is copied to the staging
    /// buffer, because received data would overwrite unsent data.
    fn stage_in_place(&mut self, calls: &[&OwnedCall]) -> Result<Vec<DeviceBuffers>> {
        let is_staged = |call: &&OwnedCall| call.kind == CallKind::AllToAll && call.input.is_none();
        let staged_bytes = |call: &OwnedCall| call.output.len().next_multiple_of(STAGING_ALIGNMENT);
        let staged = calls.iter().copied().filter(is_staged);
        self.reserve_staging(staged.map(staged_bytes).sum())?;
        let mut offset = STAGING_ALIGNMENT;
        let mut buffers = Vec::new();
        for call in calls {
            let mut each = self.device_buffers(call);
            if is_staged(call) {
                let copy = address(&self.staging).wrapping_byte_add(offset);
                offset += staged_bytes(call);
                self.device.copy(copy, address(&call.output), call.output.len())?;
                each.send = copy;
            }
            buffers.push(each);
        }
        Ok(buffers)
    }

    /// Start addresses of a rank's contribution and result in its device buffers.
    fn device_buffers(&self, call: &OwnedCall) -> DeviceBuffers {
        let (rank, output) = (self.rank as usize, address(&call.output));
        let own = output.wrapping_byte_add(call.counts.offset(rank) * call.dtype.size());
        let root = call.root as usize == rank;
        let input = call.input.as_ref().filter(|_| call.kind != CallKind::Broadcast).map(address);
        let (send, recv) = match (input, call.kind) {
            (_, CallKind::Barrier) => (address(&self.staging), address(&self.staging)),
            (Some(input), _) => (input, output),
            (None, CallKind::AllGather) => (own, output),
            (None, CallKind::Gather) if root => (own, output),
            (None, CallKind::ReduceScatter) => (output, own),
            (None, CallKind::Scatter) if root => (output, own),
            (None, _) => (output, output),
        };
        DeviceBuffers { send: send.cast_const(), recv }
    }

    /// Runs a call on device buffers that NCCL does not support via host memory.
    fn run_copied_to_host(&mut self, owned: &mut OwnedCall, issued: &Issued) -> Result {
        self.wait_idle()?;
        let to_host = |buffer: &Buffer| {
            let mut bytes = vec![0u8; buffer.len()];
            buffer.copy_to_host(&mut bytes).map(|()| bytes)
        };
        let mut output = to_host(&owned.output)?;
        let input = owned.input.as_ref().map(to_host).transpose()?;
        let call = owned.without_buffers();
        let call = Call { input: input.as_deref(), output: &mut output, ..call };
        self.run_one_via_host(call, issued)?;
        owned.output.copy_from_host(&output)
    }

    /// Runs a call on host memory.
    pub(super) fn run_one_via_host(&mut self, call: Call<'_>, issued: &Issued) -> Result {
        match call.kind.reduces() && nccl_dtype(call.dtype).is_none() {
            true => self.reduce_on_host(call, issued),
            false => self.run_via_host(vec![call], issued),
        }
    }

    /// Reduces a type that NCCL does not support: gathers all inputs and reduces them on the host.
    fn reduce_on_host(&mut self, call: Call<'_>, issued: &Issued) -> Result {
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let input = call.input.unwrap_or(call.output).to_vec();
        let mut all = vec![0; input.len() * ranks];
        let gather = Call {
            kind: CallKind::AllGather,
            dtype: DType::U8,
            counts: Counts::Equal(input.len()),
            input: Some(&input),
            output: &mut all,
            ..call
        };
        self.run_via_host(vec![gather], issued)?;
        let mut reduced = vec![0; input.len()];
        let inputs: Vec<&[u8]> = all.chunks_exact(input.len().max(1)).collect();
        if !input.is_empty() {
            reduce_many(call.dtype, call.op, &mut reduced, inputs.len(), |i| inputs[i]);
        }
        let range = call.result_range(rank);
        let scatters = call.kind == CallKind::ReduceScatter;
        let from = if scatters { call.own_block(rank).start } else { 0 };
        let bytes = range.len();
        call.output[range].copy_from_slice(&reduced[from..from + bytes]);
        Ok(())
    }
}

/// The messages of a kind. NCCL has no tags, so messages between two ranks are ordered by tag.
fn transfers(messages: &[&OwnedCall], kind: CallKind) -> Vec<Transfer> {
    let mut calls: Vec<_> = messages.iter().filter(|call| call.kind == kind).collect();
    calls.sort_by_key(|call| call.tag);
    let transfer = |call: &&&OwnedCall| {
        let buffer = call.input.as_ref().unwrap_or(&call.output);
        Transfer { peer: call.root as usize, address: address(buffer), bytes: buffer.len() }
    };
    calls.iter().map(transfer).collect()
}

fn address(buffer: &Buffer) -> *mut c_void {
    buffer.address().as_ptr().cast()
}

/// Whether a call on device memory must run via the host: NCCL has no 16-bit integers, and its old
/// versions average signed integers as unsigned ones.
pub(super) fn needs_host(call: &OwnedCall) -> bool {
    let float = matches!(call.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    let integer_average = call.op == ReduceOp::Average && !float;
    call.kind.reduces() && (nccl_dtype(call.dtype).is_none() || integer_average)
}
