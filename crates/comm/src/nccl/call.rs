//! Runs calls on host memory, which is staged through the device, and on device memory.

use std::ffi::c_void;

use super::NcclEngine;
use super::enqueue::{ByteLayout, DeviceBuffers, Transfer, nccl_dtype};
use crate::reduce_kernel::{finalize, reduce_many};
use crate::{Buffer, Call, CallKind, Counts, DType, OwnedCall, ReduceOp, Result};

/// Alignment of staged messages.
const STAGING_ALIGNMENT: usize = 64;

impl NcclEngine {
    /// Runs a call on host memory: copies the input to the device, runs there and copies the output
    /// back.
    pub(super) fn run_via_host(&mut self, call: Call<'_>) -> Result {
        if call.kind.reduces() && nccl_dtype(call.dtype).is_none() {
            return self.reduce_on_host(call);
        }
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
        self.enqueue(&device_call, &layout, buffers)?;
        let range = call.result_range(rank);
        let result = &mut call.output[range];
        // A copy to pageable memory blocks until the stream is idle, without a timeout: wait first.
        self.synchronize(call.kind, &[call.root])?;
        self.device.copy_to_host(result, self.output.start)?;
        self.device.synchronize()?;
        if call.kind.reduces() {
            finalize(call.dtype, call.op, ranks as u32, result);
        }
        Ok(())
    }

    /// Runs a group of messages from and to host memory. NCCL has no tags, so messages between two
    /// ranks are ordered by tag.
    pub(super) fn run_p2p_via_host(&mut self, mut calls: Vec<Call<'_>>) -> Result {
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
        self.enqueue_transfers(&send_transfers, &recv_transfers)?;
        self.synchronize(CallKind::Send, &peer_ranks(&send_transfers, &recv_transfers))?;
        for (call, transfer) in receives.iter_mut().zip(&recv_transfers) {
            self.device.copy_to_host(call.output, transfer.address)?;
        }
        self.device.synchronize()
    }

    /// Runs a call on buffers of this rank's device, `times` times back to back.
    pub(super) fn run_on_device(&mut self, owned: &mut OwnedCall, times: u32) -> Result {
        let call = owned.without_buffers();
        if needs_host(&call) {
            return (0..times).try_for_each(|_| self.run_copied_to_host(owned));
        }
        self.check_counts(&call)?;
        for batch in self.batches(owned.output.len(), times) {
            (0..batch).try_for_each(|_| self.enqueue_on_device(owned))?;
            self.synchronize(call.kind, &[call.root])?;
        }
        Ok(())
    }

    /// Splits repeated calls into batches: short enough that a batch stays within the timeout and
    /// below the runtime's limit of some thousand queued operations, beyond which it blocks.
    fn batches(&self, bytes: usize, times: u32) -> impl Iterator<Item = u32> + use<> {
        const MAX_BATCH: u64 = 256;
        // A lower bound on network bandwidth.
        const MIN_BYTES_PER_S: u64 = 100_000_000;
        let bytes_in_time = self.config.desync_after.as_secs() / 4 * MIN_BYTES_PER_S;
        let batch = (bytes_in_time / (bytes as u64).max(1)).clamp(1, MAX_BATCH) as u32;
        (0..times).step_by(batch as usize).map(move |done| batch.min(times - done))
    }

    fn enqueue_on_device(&mut self, owned: &OwnedCall) -> Result {
        let call = owned.without_buffers();
        let layout = ByteLayout { counts: &owned.counts, size: call.dtype.size() };
        let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
        let output = address(&owned.output);
        let input = owned.input.as_ref().filter(|_| call.kind != CallKind::Broadcast).map(address);
        let mut buffers = device_buffers(&call, &layout, self.rank as usize, input, output);
        if call.kind == CallKind::Barrier {
            buffers = self.staging();
        }
        if call.kind == CallKind::AllToAll && input.is_none() {
            // In place, received data would overwrite unsent data.
            self.reserve_staging(owned.output.len().max(4), 4)?;
            self.device.copy(self.input.start, output, owned.output.len())?;
            buffers.send = self.input.start;
        }
        self.enqueue(&call, &layout, buffers)?;
        self.wait_enqueued(call.kind)
    }

    /// Runs messages from and to buffers of this rank's device, `times` times back to back.
    pub(super) fn run_p2p_on_device(&mut self, calls: &[OwnedCall], times: u32) -> Result {
        let transfer = |call: &OwnedCall| {
            let buffer = call.input.as_ref().unwrap_or(&call.output);
            let address = buffer.address().as_ptr().cast();
            Transfer { peer: call.root as usize, address, bytes: buffer.len() }
        };
        let transfers = |kind: CallKind| {
            let mut calls: Vec<&OwnedCall> = calls.iter().filter(|c| c.kind == kind).collect();
            calls.sort_by_key(|call| call.tag);
            calls.into_iter().map(transfer).collect::<Vec<_>>()
        };
        let (sends, recvs) = (transfers(CallKind::Send), transfers(CallKind::Receive));
        let peers = peer_ranks(&sends, &recvs);
        let bytes = sends.iter().chain(&recvs).map(|transfer| transfer.bytes).sum();
        for batch in self.batches(bytes, times) {
            for _ in 0..batch {
                self.enqueue_transfers(&sends, &recvs)?;
                self.wait_enqueued(CallKind::Send)?;
            }
            self.synchronize(CallKind::Send, &peers)?;
        }
        Ok(())
    }

    /// Runs a call on device buffers that NCCL does not support via host memory.
    fn run_copied_to_host(&mut self, owned: &mut OwnedCall) -> Result {
        let to_host = |buffer: &Buffer| {
            let mut bytes = vec![0u8; buffer.len()];
            buffer.copy_to_host(&mut bytes).map(|()| bytes)
        };
        let mut output = to_host(&owned.output)?;
        let input = owned.input.as_ref().map(to_host).transpose()?;
        let call = owned.without_buffers();
        self.run_via_host(Call { input: input.as_deref(), output: &mut output, ..call })?;
        owned.output.copy_from_host(&output)
    }

    /// Reduces a type that NCCL does not support: gathers all inputs and reduces them on the host.
    fn reduce_on_host(&mut self, call: Call<'_>) -> Result {
        let (rank, ranks) = (self.rank as usize, self.peers.len());
        let input = call.input.unwrap_or(call.output).to_vec();
        let mut all = vec![0; input.len() * ranks];
        self.run_via_host(Call {
            kind: CallKind::AllGather,
            dtype: DType::U8,
            counts: Counts::Equal(input.len()),
            input: Some(&input),
            output: &mut all,
            ..call
        })?;
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

fn peer_ranks(sends: &[Transfer], recvs: &[Transfer]) -> Vec<u32> {
    sends.iter().chain(recvs).map(|transfer| transfer.peer as u32).collect()
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
fn needs_host(call: &Call) -> bool {
    let float = matches!(call.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    let integer_average = call.op == ReduceOp::Average && !float;
    call.kind.reduces() && (nccl_dtype(call.dtype).is_none() || integer_average)
}

/// Start addresses of a rank's contribution and result in its device buffers.
fn device_buffers(
    call: &Call,
    layout: &ByteLayout,
    rank: usize,
    input: Option<*mut c_void>,
    output: *mut c_void,
) -> DeviceBuffers {
    let own = output.wrapping_byte_add(layout.offset(rank));
    let root = call.root as usize == rank;
    let (send, recv) = match (input, call.kind) {
        (Some(input), _) => (input, output),
        (None, CallKind::AllGather) => (own, output),
        (None, CallKind::Gather) if root => (own, output),
        (None, CallKind::ReduceScatter) => (output, own),
        (None, CallKind::Scatter) if root => (output, own),
        (None, _) => (output, output),
    };
    DeviceBuffers { send: send.cast_const(), recv }
}
