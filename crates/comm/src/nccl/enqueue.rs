//! Enqueues a call's NCCL operations on device memory.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

use super::NcclEngine;
use crate::{Call, CallKind, Counts, DType, ReduceOp, Result};

/// `ncclDataType_t`; there is none for 16-bit integers.
pub(super) fn nccl_dtype(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => NCCL_UINT8,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
        DType::I16 => return None,
    })
}

/// `ncclUint8`, for untyped bytes.
const NCCL_UINT8: c_int = 1;

/// `ncclRedOp_t`.
fn nccl_op(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Average => 4,
    }
}

/// Start addresses of this rank's contribution and result on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceBuffers {
    pub send: *const c_void,
    pub recv: *mut c_void,
}

/// A message to or from a peer.
pub(super) struct Transfer {
    pub peer: usize,
    pub address: *mut c_void,
    pub bytes: usize,
}

impl NcclEngine {
    /// Enqueues the operations of a call.
    pub(super) fn enqueue_operations(&self, call: &Call, buffers: DeviceBuffers) -> Result {
        use CallKind::{AllGather, AllReduce, Barrier, Broadcast, Reduce, ReduceScatter};
        match call.kind {
            AllReduce | Reduce | ReduceScatter => self.enqueue_reduction(call, buffers),
            AllGather if matches!(call.counts, Counts::Equal(_)) => {
                self.enqueue_all_gather(call, buffers)
            }
            Broadcast | AllGather => self.enqueue_broadcasts(call, buffers),
            Barrier => self.enqueue_barrier(buffers),
            _ => self.enqueue_p2p(call, buffers),
        }
    }

    /// Runs `enqueue` between `ncclGroupStart` and `ncclGroupEnd`, and waits until the library has
    /// enqueued the group.
    pub(super) fn grouped(&self, what: &str, enqueue: impl FnOnce() -> Result) -> Result {
        // SAFETY: the function takes no arguments.
        self.check("group start", unsafe { (self.api.group_start)() })?;
        let enqueued = enqueue();
        // SAFETY: the function takes no arguments.
        let ended = self.check(what, unsafe { (self.api.group_end)() });
        enqueued.and(ended)?;
        self.wait_enqueued(what)
    }

    pub(super) fn enqueue_messages(&self, sends: &[Transfer], recvs: &[Transfer]) -> Result {
        let (raw, stream) = (self.raw, self.device.stream);
        let has_data = |transfer: &&Transfer| transfer.bytes > 0;
        for &Transfer { peer, address, bytes } in sends.iter().filter(has_data) {
            let peer = peer as c_int;
            // SAFETY: the address holds `bytes` bytes.
            let code = unsafe { (self.api.send)(address, bytes, NCCL_UINT8, peer, raw, stream) };
            self.check("send", code)?;
        }
        for &Transfer { peer, address, bytes } in recvs.iter().filter(has_data) {
            let peer = peer as c_int;
            // SAFETY: the address holds `bytes` bytes.
            let code = unsafe { (self.api.recv)(address, bytes, NCCL_UINT8, peer, raw, stream) };
            self.check("receive", code)?;
        }
        Ok(())
    }

    fn enqueue_reduction(
        &self,
        call: &Call,
        DeviceBuffers { send, recv }: DeviceBuffers,
    ) -> Result {
        let (api, stream) = (&self.api, self.device.stream);
        let (dtype, op) = (nccl_dtype(call.dtype).unwrap_or(NCCL_UINT8), nccl_op(call.op));
        let reduce = |send: *const c_void, count: usize, root: u32| {
            let recv = if root == self.rank { recv } else { null_mut() };
            // SAFETY: the buffers hold the counts, which are the same on all ranks; only the root's
            // is written.
            unsafe { (api.reduce)(send, recv, count, dtype, op, root as c_int, self.raw, stream) }
        };
        let code = match (call.kind, &call.counts) {
            // SAFETY: as above.
            (CallKind::AllReduce, counts) => unsafe {
                (api.all_reduce)(send, recv, counts.of(0), dtype, op, self.raw, stream)
            },
            (CallKind::Reduce, counts) => reduce(send, counts.of(0), call.root),
            // SAFETY: as above.
            (_, Counts::Equal(count)) => unsafe {
                (api.reduce_scatter)(send, recv, *count, dtype, op, self.raw, stream)
            },
            // NCCL has no reduce-scatter with a count per rank: one reduction per block.
            (_, counts) => {
                let block = |rank: usize| {
                    let send = send.wrapping_byte_add(call.own_block(rank).start);
                    reduce(send, counts.of(rank), rank as u32)
                };
                let codes = (0..self.peers.len()).filter(|&r| counts.of(r) > 0).map(block);
                codes.fold(0, |first, code| if first == 0 { code } else { first })
            }
        };
        self.check(call.kind.name(), code)
    }

    /// All-gather of equal blocks.
    fn enqueue_all_gather(&self, call: &Call, buffers: DeviceBuffers) -> Result {
        let DeviceBuffers { send, recv } = buffers;
        let (bytes, stream) = (call.own_block(0).len(), self.device.stream);
        // SAFETY: the output holds all blocks.
        let code =
            unsafe { (self.api.all_gather)(send, recv, bytes, NCCL_UINT8, self.raw, stream) };
        self.check("all-gather", code)
    }

    /// A broadcast, or an all-gather as one broadcast per block.
    fn enqueue_broadcasts(
        &self,
        call: &Call,
        DeviceBuffers { send, recv }: DeviceBuffers,
    ) -> Result {
        let is_broadcast = call.kind == CallKind::Broadcast;
        let roots = match is_broadcast {
            true => call.root..call.root + 1,
            false => 0..self.peers.len() as u32,
        };
        for root in roots {
            let block = call.own_block(if is_broadcast { 0 } else { root as usize });
            if block.is_empty() {
                continue;
            }
            let (recv, bytes) = (recv.wrapping_byte_add(block.start), block.len());
            let (root, raw, stream) = (root as c_int, self.raw, self.device.stream);
            // SAFETY: the output holds the block; only the root's input is read.
            let code =
                unsafe { (self.api.broadcast)(send, recv, bytes, NCCL_UINT8, root, raw, stream) };
            self.check(call.kind.name(), code)?;
        }
        Ok(())
    }

    /// A barrier is an all-reduce of one element.
    fn enqueue_barrier(&self, DeviceBuffers { send, recv }: DeviceBuffers) -> Result {
        let (api, op) = (&self.api, nccl_op(ReduceOp::Sum));
        // SAFETY: both buffers hold one element.
        let code = unsafe {
            (api.all_reduce)(send, recv, 1, NCCL_UINT8, op, self.raw, self.device.stream)
        };
        self.check("barrier", code)
    }

    /// Gather, scatter and all-to-all as point-to-point messages.
    fn enqueue_p2p(&self, call: &Call, buffers: DeviceBuffers) -> Result {
        let (rank, root) = (self.rank as usize, call.root as usize);
        let own = 0..call.own_block(rank).len();
        let transfer = |start: *mut c_void, peer, block: Range<usize>| Transfer {
            peer,
            address: start.wrapping_byte_add(block.start),
            bytes: block.len(),
        };
        let send = |peer, block| transfer(buffers.send.cast_mut(), peer, block);
        let recv = |peer, block| transfer(buffers.recv, peer, block);
        let sent_block = |to: usize| {
            let (start, count) = call.counts.send_block(to);
            start * call.dtype.size()..(start + count) * call.dtype.size()
        };
        let all = 0..self.peers.len();
        let at_root = all.clone().filter(|_| rank == root);
        let (mut sends, mut recvs): (Vec<Transfer>, Vec<Transfer>) = match call.kind {
            CallKind::Gather => {
                (vec![send(root, own)], at_root.map(|r| recv(r, call.own_block(r))).collect())
            }
            CallKind::Scatter => {
                (at_root.map(|r| send(r, call.own_block(r))).collect(), vec![recv(root, own)])
            }
            _ => {
                let sends = all.clone().map(|r| send(r, sent_block(r))).collect();
                (sends, all.map(|r| recv(r, call.own_block(r))).collect())
            }
        };
        // In place, a rank's own block is already where it belongs.
        let own_address = |all: &[Transfer]| all.iter().find(|t| t.peer == rank).map(|t| t.address);
        if own_address(&sends).is_some() && own_address(&sends) == own_address(&recvs) {
            sends.retain(|transfer| transfer.peer != rank);
            recvs.retain(|transfer| transfer.peer != rank);
        }
        self.enqueue_messages(&sends, &recvs)
    }
}
