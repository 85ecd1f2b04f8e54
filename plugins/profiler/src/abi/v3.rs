//! Version 3: NCCL 2.26, RCCL of ROCm 7.0.
//!
//! It has no device times, and describes the communicator only with each operation. Newer versions of
//! NCCL do not even do that when they use this version.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::{NAME, NcclResult, ProxyOp, ProxyStep, Table, event, guard};
use crate::handle::Handle;
use crate::model::{Collective, CommunicatorFacts, Descriptor, Message, text};

const EVENTS: u64 =
    event::COLLECTIVE | event::P2P | event::PROXY_OP | event::PROXY_STEP | event::KERNEL_CHANNEL;

/// The table.
pub type Profiler = Table<Init, EventDescriptor, StateArguments>;
/// The function that opens a communicator.
pub type Init = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclProfiler_v3: Profiler = Table {
    name: NAME,
    init,
    start_event,
    stop_event: super::stop_event,
    record_event_state,
    finalize: super::finalize,
};

/// An event.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct EventDescriptor {
    pub event_type: u8,
    pub parent: *mut c_void,
    pub rank: c_int,
    pub detail: Detail,
}

/// The part of an event that depends on its type.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub union Detail {
    pub collective: CollectiveDetail,
    pub p2p: P2pDetail,
    pub proxy_op: ProxyOp,
    pub proxy_step: ProxyStep,
    pub channel_id: u8,
    pub net_plugin: [u64; 2],
}

/// A collective.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct CollectiveDetail {
    pub name: *const c_char,
    pub comm_hash: u64,
    pub sequence: u64,
    pub function: *const c_char,
    pub send_buffer: *const c_void,
    pub receive_buffer: *mut c_void,
    pub count: usize,
    pub root: c_int,
    pub dtype: *const c_char,
    pub max_channels: u8,
    pub warps: u8,
    pub algorithm: *const c_char,
    pub protocol: *const c_char,
}

/// A point-to-point operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct P2pDetail {
    pub name: *const c_char,
    pub comm_hash: u64,
    pub function: *const c_char,
    pub buffer: *mut c_void,
    pub dtype: *const c_char,
    pub count: usize,
    pub peer: c_int,
}

/// The arguments of a state. None of them is used.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct StateArguments {
    /// Bytes of a transfer so far.
    pub transferred: usize,
    /// Steps of a transfer so far.
    pub steps: c_int,
}

const _: () = {
    type C = CollectiveDetail;
    assert!(size_of::<EventDescriptor>() == 120);
    assert!(offset_of!(EventDescriptor, parent) == 8);
    assert!(offset_of!(EventDescriptor, rank) == 16);
    assert!(offset_of!(EventDescriptor, detail) == 24);
    assert!(size_of::<C>() == 96);
    assert!(offset_of!(C, name) == 0);
    assert!(offset_of!(C, comm_hash) == 8);
    assert!(offset_of!(C, sequence) == 16);
    assert!(offset_of!(C, function) == 24);
    assert!(offset_of!(C, send_buffer) == 32);
    assert!(offset_of!(C, receive_buffer) == 40);
    assert!(offset_of!(C, count) == 48);
    assert!(offset_of!(C, root) == 56);
    assert!(offset_of!(C, dtype) == 64);
    assert!(offset_of!(C, max_channels) == 72);
    assert!(offset_of!(C, warps) == 73);
    assert!(offset_of!(C, algorithm) == 80);
    assert!(offset_of!(C, protocol) == 88);
    assert!(offset_of!(P2pDetail, name) == 0);
    assert!(offset_of!(P2pDetail, comm_hash) == 8);
    assert!(offset_of!(P2pDetail, function) == 16);
    assert!(offset_of!(P2pDetail, buffer) == 24);
    assert!(offset_of!(P2pDetail, dtype) == 32);
    assert!(offset_of!(P2pDetail, count) == 40);
    assert!(offset_of!(P2pDetail, peer) == 48);
    assert!(size_of::<StateArguments>() == 16);
};

unsafe extern "C" fn init(context: *mut *mut c_void, activation: *mut c_int) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::init(context, activation, None, None, EVENTS) })
}

unsafe extern "C" fn start_event(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const EventDescriptor,
) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::start_event(context, handle, event, |event| read(event)) })
}

unsafe extern "C" fn record_event_state(
    handle: *mut c_void,
    state: c_int,
    _: *const StateArguments,
) -> NcclResult {
    guard(|| super::record_state(handle, state, 0))
}

/// # Safety
/// The event has the detail of its type, and its texts are valid.
unsafe fn read(event: &EventDescriptor) -> Descriptor<'_> {
    let EventDescriptor { event_type, parent, rank, detail } = event;
    let parent = Handle::from_pointer(*parent);
    // SAFETY: the type selects the member of the union, and NCCL's texts are C strings.
    unsafe {
        match u64::from(*event_type) {
            event::GROUP => Descriptor::Group,
            event::COLLECTIVE => Descriptor::Collective(read_collective(&detail.collective, *rank)),
            event::P2P => Descriptor::Message(read_message(&detail.p2p, *rank)),
            event::PROXY_OP => read_proxy_op(parent, &detail.proxy_op),
            event::PROXY_STEP => Descriptor::Step { parent, step: detail.proxy_step.step },
            event::KERNEL_CHANNEL => {
                Descriptor::Channel { parent, device_time: 0, ends_at_stop: true }
            }
            _ => Descriptor::Other,
        }
    }
}

fn read_proxy_op(parent: Handle, proxy_op: &ProxyOp) -> Descriptor<'static> {
    Descriptor::Transfer {
        parent,
        pid: proxy_op.pid,
        channel: proxy_op.channel_id,
        peer: proxy_op.peer,
        sends: proxy_op.is_send != 0,
        starts_at_once: true,
    }
}

/// # Safety
/// The texts are valid.
unsafe fn read_collective(detail: &CollectiveDetail, rank: c_int) -> Collective<'_> {
    // SAFETY: by the caller's contract.
    unsafe {
        Collective {
            api: Handle::None,
            communicator: Some(facts(detail.comm_hash, detail.name, rank)),
            sequence: detail.sequence,
            function: text(detail.function),
            count: detail.count as u64,
            root: detail.root,
            dtype: text(detail.dtype),
            // `max_channels` is a limit: fewer may run.
            channels: 0,
            algorithm: text(detail.algorithm),
            protocol: text(detail.protocol),
        }
    }
}

/// # Safety
/// The texts are valid.
unsafe fn read_message(detail: &P2pDetail, rank: c_int) -> Message<'_> {
    // SAFETY: by the caller's contract.
    unsafe {
        Message {
            api: Handle::None,
            communicator: Some(facts(detail.comm_hash, detail.name, rank)),
            function: text(detail.function),
            count: detail.count as u64,
            peer: detail.peer,
            rank,
            dtype: text(detail.dtype),
            channels: 0,
        }
    }
}

/// # Safety
/// The name is valid.
unsafe fn facts<'a>(id: u64, name: *const c_char, rank: c_int) -> CommunicatorFacts<'a> {
    // SAFETY: by the caller's contract.
    CommunicatorFacts { id, name: unsafe { text(name) }, rank, nodes: 0, ranks: 0 }
}
