//! Runs calls on host memory, which is staged through the device, and on device memory.

use std::ffi::c_void;

use super::NcclEngine;
use super::enqueue::{ByteLayout, DeviceBuffers, Transfer, nccl_dtype};
use super::in_flight::Issued;
use crate::comm::SharedCalls;
use crate::reduce_kernel::{finalize, reduce_many};
use crate::{Buffer, Call, CallKind, Counts, DType, Event, OwnedCall, ReduceOp, Result};

/// Alignment of staged messages.
const STAGING_ALIGNMENT: usize = 64;

impl NcclEngine {
    /// Runs a call on host memory: copies the input to the device, runs there and copies the output
    /// back.
    pub(super) fn run_via_host(&mut self, call: Call<'_>, issued: &Issued) -> Result {
        if call.kind.reduces() && nccl_dtype(call.dtype).is_none() {
            return self.reduce_on_host(call, issued);
        }
        // A copy from or to pageable memory blocks until the stream is idle, without a timeout.
        self.wait_idle()?;
        self.check_counts(&call)?;
        let counts = call.counts.clone();
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let layout = ByteLayout { counts: &counts, size: call.dtype.size() };
        let input = call.contribution(rank);
        self.reserve_staging(input.len().max(4), call.output.len().max(4))?;
        self.device.copy_from_host(self.input.start, input)?;
        // An average is a sum divided on the host, as in all other communicators.
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let buffers = self.staging();
        let device_call =
            Call { op, counts: counts.clone(), input: call.input, output: &mut [], ..call };
        self.grouped(call.kind.name(), || self.enqueue_operations(&device_call, &layout, buffers))?;
        self.track(issued.clone(), &[], None)?;
        self.wait_idle()?;
        let range = call.result_range(rank);
        let result = &mut call.output[range];
        self.device.copy_to_host(result, self.output.start)?;
        self.device.synchronize()?;
        if call.kind.reduces() {
            finalize(call.dtype, call.op, ranks as u32, result);
        }
        Ok(())
    }

    /// Runs a group of messages from and to host memory. NCCL has no tags, so messages between two
    /// ranks are ordered by tag.
    pub(super) fn run_p2p_via_host(&mut self, mut calls: Vec<Call<'_>>, issued: &Issued) -> Result {
        self.wait_idle()?;
        calls.sort_by_key(|call| call.tag);
        let (sends, mut receives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| call.kind == CallKind::Send);
        let sent_bytes = |call: &Call| call.input.map_or(call.output.len(), <[u8]>::len);
        let input = staged_bytes(&sends, sent_bytes);
        let output = staged_bytes(&receives, |call| call.output.len());
        self.reserve_staging(input.max(4), output.max(4))?;
        let send_transfers = staging_transfers(&sends, self.input.start, sent_bytes);
        let recv_transfers =
            staging_transfers(&receives, self.output.start, |call| call.output.len());
        for (call, transfer) in sends.iter().zip(&send_transfers) {
            self.device.copy_from_host(transfer.address, call.input.unwrap_or(call.output))?;
        }
        let messages = || self.enqueue_messages(&send_transfers, &recv_transfers);
        self.grouped("send and receive", messages)?;
        self.track(issued.clone(), &[], None)?;
        self.wait_idle()?;
        for (call, transfer) in receives.iter_mut().zip(&recv_transfers) {
            self.device.copy_to_host(call.output, transfer.address)?;
        }
        self.device.synchronize()
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
            let layout = ByteLayout { counts: &call.counts, size: call.dtype.size() };
            self.enqueue_operations(&call.without_buffers(), &layout, buffers)
        };
        if !calls.is_empty() {
            self.grouped(issued.signature.kind.name(), || {
                self.enqueue_messages(&sends, &recvs)?;
                collectives.iter().zip(buffers).try_for_each(enqueue)
            })?;
        }
        self.track(issued.clone(), after, memory)
    }

    /// The addresses of collectives. The input of an in-place all-to-all is copied to the staging
    /// buffer, because received data would overwrite unsent data.
    fn stage_in_place(&mut self, calls: &[&OwnedCall]) -> Result<Vec<DeviceBuffers>> {
        let is_staged = |call: &&OwnedCall| call.kind == CallKind::AllToAll && call.input.is_none();
        let staged_bytes = |call: &OwnedCall| call.output.len().next_multiple_of(STAGING_ALIGNMENT);
        let staged = calls.iter().copied().filter(is_staged);
        self.reserve_staging(staged.map(staged_bytes).sum::<usize>().max(4), 4)?;
        let mut offset = 0;
        let mut buffers = Vec::new();
        for call in calls {
            let mut each = self.device_buffers(call);
            if is_staged(call) {
                each.send = self.input.start.wrapping_byte_add(offset);
                offset += staged_bytes(call);
                let output = call.output.address().as_ptr().cast();
                self.device.copy(each.send.cast_mut(), output, call.output.len())?;
            }
            buffers.push(each);
        }
        Ok(buffers)
    }

    /// Start addresses of a rank's contribution and result in its device buffers.
    fn device_buffers(&self, call: &OwnedCall) -> DeviceBuffers {
        let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
        let layout = ByteLayout { counts: &call.counts, size: call.dtype.size() };
        let (rank, output) = (self.rank as usize, address(&call.output));
        let own = output.wrapping_byte_add(layout.offset(rank));
        let root = call.root as usize == rank;
        let input = call.input.as_ref().filter(|_| call.kind != CallKind::Broadcast).map(address);
        let (send, recv) = match (input, call.kind) {
            (_, CallKind::Barrier) => return self.staging(),
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
        self.run_via_host(call, issued)?;
        owned.output.copy_from_host(&output)
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
        self.run_via_host(gather, issued)?;
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

    fn staging(&self) -> DeviceBuffers {
        DeviceBuffers { send: self.input.start, recv: self.output.start }
    }
}

/// The messages of a kind. NCCL has no tags, so messages between two ranks are ordered by tag.
fn transfers(messages: &[&OwnedCall], kind: CallKind) -> Vec<Transfer> {
    let mut calls: Vec<_> = messages.iter().filter(|call| call.kind == kind).collect();
    calls.sort_by_key(|call| call.tag);
    let transfer = |call: &&&OwnedCall| {
        let buffer = call.input.as_ref().unwrap_or(&call.output);
        let address = buffer.address().as_ptr().cast();
        Transfer { peer: call.root as usize, address, bytes: buffer.len() }
    };
    calls.iter().map(transfer).collect()
}

/// Size of a staging buffer for consecutive messages.
fn staged_bytes(calls: &[Call<'_>], bytes: impl Fn(&Call) -> usize) -> usize {
    calls.iter().map(|call| bytes(call).next_multiple_of(STAGING_ALIGNMENT)).sum()
}

/// Consecutive messages in a staging buffer.
fn staging_transfers(
    calls: &[Call<'_>],
    start: *mut c_void,
    bytes: impl Fn(&Call) -> usize,
) -> Vec<Transfer> {
    let mut offset = 0;
    let transfer = |call: &Call| {
        let (address, bytes) = (start.wrapping_byte_add(offset), bytes(call));
        offset += bytes.next_multiple_of(STAGING_ALIGNMENT);
        Transfer { peer: call.root as usize, address, bytes }
    };
    calls.iter().map(transfer).collect()
}

/// Whether a call on device memory must run via the host: NCCL has no 16-bit integers, and its old
/// versions average signed integers as unsigned ones.
pub(super) fn needs_host(call: &OwnedCall) -> bool {
    let float = matches!(call.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    let integer_average = call.op == ReduceOp::Average && !float;
    call.kind.reduces() && (nccl_dtype(call.dtype).is_none() || integer_average)
}
