//! Version 4: NCCL 2.27, RCCL of ROCm 7.1 and 7.2.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::v3::EVENTS;
use super::{EventDetail, KernelChannel, NcclResult, ProxyOp, ProxyStep, Table, event, guard};
use crate::handle::Handle;
use crate::log::Logger;
use crate::model::{Collective, CommunicatorFacts, Descriptor, Message, text};

/// The table.
pub type Profiler = Table<Init, EventDescriptor, u64>;
/// The function that opens a communicator: context, event mask, name, hash, nodes, ranks, rank, logger.
pub type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclProfiler_v4: Profiler = Profiler::new(init, super::record_event_state);

/// An event.
pub type EventDescriptor = super::EventDescriptor<u8, Detail>;

/// The part of an event that depends on its type.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub union Detail {
    pub collective: CollectiveDetail,
    pub p2p: P2pDetail,
    pub proxy_op: ProxyOp,
    pub proxy_step: ProxyStep,
    pub kernel_channel: KernelChannel,
    pub net_plugin: [u64; 2],
}

/// A collective. Version 5 appends a field.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct CollectiveDetail {
    pub sequence: u64,
    pub function: *const c_char,
    pub send_buffer: *const c_void,
    pub receive_buffer: *mut c_void,
    pub count: usize,
    pub root: c_int,
    pub dtype: *const c_char,
    pub channels: u8,
    pub warps: u8,
    pub algorithm: *const c_char,
    pub protocol: *const c_char,
}

/// A point-to-point operation. Version 5 appends a field.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct P2pDetail {
    pub function: *const c_char,
    pub buffer: *mut c_void,
    pub dtype: *const c_char,
    pub count: usize,
    pub peer: c_int,
    pub channels: u8,
}

const _: () = {
    type C = CollectiveDetail;
    assert!(size_of::<EventDescriptor>() == 104);
    assert!(size_of::<C>() == 80);
    assert!(offset_of!(C, sequence) == 0);
    assert!(offset_of!(C, function) == 8);
    assert!(offset_of!(C, send_buffer) == 16);
    assert!(offset_of!(C, receive_buffer) == 24);
    assert!(offset_of!(C, count) == 32);
    assert!(offset_of!(C, root) == 40);
    assert!(offset_of!(C, dtype) == 48);
    assert!(offset_of!(C, channels) == 56);
    assert!(offset_of!(C, warps) == 57);
    assert!(offset_of!(C, algorithm) == 64);
    assert!(offset_of!(C, protocol) == 72);
    assert!(size_of::<P2pDetail>() == 40);
    assert!(offset_of!(P2pDetail, function) == 0);
    assert!(offset_of!(P2pDetail, buffer) == 8);
    assert!(offset_of!(P2pDetail, dtype) == 16);
    assert!(offset_of!(P2pDetail, count) == 24);
    assert!(offset_of!(P2pDetail, peer) == 32);
    assert!(offset_of!(P2pDetail, channels) == 36);
};

#[allow(clippy::too_many_arguments, reason = "NCCL's signature")]
unsafe extern "C" fn init(
    context: *mut *mut c_void,
    activation: *mut c_int,
    name: *const c_char,
    id: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> NcclResult {
    // SAFETY: NCCL passes valid pointers, and a C string or NULL as the name.
    guard(|| unsafe {
        let facts = CommunicatorFacts { id, name: text(name), nodes, ranks, rank };
        super::init(context, activation, Some(facts), logger, EVENTS);
    })
}

impl EventDetail for Detail {
    unsafe fn read(&self, event_type: u64, parent: Handle, rank: c_int) -> Descriptor<'_> {
        // SAFETY: the type selects the member of the union, and NCCL's texts are C strings.
        unsafe {
            match event_type {
                event::GROUP => Descriptor::Group,
                // The parent is the group.
                event::COLLECTIVE => {
                    Descriptor::Collective(read_collective(&self.collective, Handle::None))
                }
                event::P2P => Descriptor::Message(read_message(&self.p2p, Handle::None, rank)),
                // The event starts when the transfer is queued; a state reports its start.
                event::PROXY_OP => read_proxy_op(parent, &self.proxy_op, false),
                event::PROXY_STEP => Descriptor::Step { parent, step: self.proxy_step.step },
                event::KERNEL_CHANNEL => {
                    let device_time = self.kernel_channel.p_timer;
                    Descriptor::Channel { parent, device_time, ends_at_stop: false }
                }
                _ => Descriptor::Other,
            }
        }
    }
}

pub(super) fn read_proxy_op(
    parent: Handle,
    proxy_op: &ProxyOp,
    starts_at_once: bool,
) -> Descriptor<'static> {
    Descriptor::Transfer {
        parent,
        pid: proxy_op.pid,
        channel: proxy_op.channel_id,
        peer: proxy_op.peer,
        sends: proxy_op.is_send != 0,
        starts_at_once,
    }
}

/// # Safety
/// The texts are valid.
pub(super) unsafe fn read_collective(detail: &CollectiveDetail, api: Handle) -> Collective<'_> {
    // SAFETY: by the caller's contract.
    unsafe {
        Collective {
            api,
            communicator: None,
            sequence: detail.sequence,
            function: text(detail.function),
            count: detail.count as u64,
            root: detail.root,
            dtype: text(detail.dtype),
            channels: detail.channels,
            algorithm: text(detail.algorithm),
            protocol: text(detail.protocol),
        }
    }
}

/// # Safety
/// The texts are valid.
pub(super) unsafe fn read_message(detail: &P2pDetail, api: Handle, rank: c_int) -> Message<'_> {
    // SAFETY: by the caller's contract.
    unsafe {
        Message {
            api,
            communicator: None,
            function: text(detail.function),
            count: detail.count as u64,
            peer: detail.peer,
            rank,
            dtype: text(detail.dtype),
            channels: detail.channels,
        }
    }
}
