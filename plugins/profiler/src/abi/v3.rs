//! Version 3: NCCL 2.26, RCCL of ROCm 7.0.
//!
//! It has no device times, and describes the communicator only with each operation. Newer versions of
//! NCCL do not even do that when they use this version.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::{EventDetail, NcclResult, ProxyOp, ProxyStep, Table, event, guard, v4};
use crate::handle::Handle;
use crate::model::{Collective, CommunicatorFacts, Descriptor, Message, text};

pub(super) const EVENTS: u64 =
    event::COLLECTIVE | event::P2P | event::PROXY_OP | event::PROXY_STEP | event::KERNEL_CHANNEL;

/// The table. No argument of a state is used.
pub type Profiler = Table<Init, EventDescriptor, c_void>;
/// The function that opens a communicator.
pub type Init = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclProfiler_v3: Profiler = Profiler::new(init, record_event_state);

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
    /// As in version 4.
    pub base: v4::CollectiveDetail,
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

const _: () = {
    type C = CollectiveDetail;
    assert!(size_of::<EventDescriptor>() == 120);
    assert!(size_of::<C>() == 96);
    assert!(offset_of!(C, name) == 0);
    assert!(offset_of!(C, comm_hash) == 8);
    assert!(offset_of!(C, base) == 16);
    assert!(offset_of!(P2pDetail, name) == 0);
    assert!(offset_of!(P2pDetail, comm_hash) == 8);
    assert!(offset_of!(P2pDetail, function) == 16);
    assert!(offset_of!(P2pDetail, buffer) == 24);
    assert!(offset_of!(P2pDetail, dtype) == 32);
    assert!(offset_of!(P2pDetail, count) == 40);
    assert!(offset_of!(P2pDetail, peer) == 48);
};

unsafe extern "C" fn init(context: *mut *mut c_void, activation: *mut c_int) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::init(context, activation, None, None, EVENTS) })
}

unsafe extern "C" fn record_event_state(
    handle: *mut c_void,
    state: c_int,
    _: *const c_void,
) -> NcclResult {
    guard(|| super::record_state(handle, state, 0))
}

impl EventDetail for Detail {
    unsafe fn read(&self, event_type: u64, parent: Handle, rank: c_int) -> Descriptor<'_> {
        // SAFETY: the type selects the member of the union, and NCCL's texts are C strings.
        unsafe {
            match event_type {
                event::GROUP => Descriptor::Group,
                event::COLLECTIVE => {
                    Descriptor::Collective(read_collective(&self.collective, rank))
                }
                event::P2P => Descriptor::Message(read_message(&self.p2p, rank)),
                event::PROXY_OP => v4::read_proxy_op(parent, &self.proxy_op, true),
                event::PROXY_STEP => Descriptor::Step { parent, step: self.proxy_step.step },
                event::KERNEL_CHANNEL => {
                    Descriptor::Channel { parent, device_time: 0, ends_at_stop: true }
                }
                _ => Descriptor::Other,
            }
        }
    }
}

/// # Safety
/// The texts are valid.
unsafe fn read_collective(detail: &CollectiveDetail, rank: c_int) -> Collective<'_> {
    // SAFETY: by the caller's contract.
    unsafe {
        Collective {
            communicator: Some(facts(detail.comm_hash, detail.name, rank)),
            // The number of channels is a limit: fewer may run.
            channels: 0,
            ..v4::read_collective(&detail.base, Handle::None)
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
