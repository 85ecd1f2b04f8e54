//! Version 5: NCCL 2.28, RCCL of ROCm 7.11.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::v4::{self, read_collective, read_message};
use super::{EventDetail, NcclResult, Table, event, guard, v3};
use crate::handle::Handle;
use crate::log::Logger;
use crate::model::{CommunicatorFacts, Descriptor, text};

pub(super) const EVENTS: u64 = v3::EVENTS | event::COLLECTIVE_API | event::P2P_API;

/// The table.
pub type Profiler = Table<Init, EventDescriptor, u64>;
/// The function that opens a communicator: context, ID, event mask, name, nodes, ranks, rank, logger.
pub type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Logger,
) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclProfiler_v5: Profiler = Profiler::new(init::<EVENTS>, super::record_event_state);

/// An event.
pub type EventDescriptor = super::EventDescriptor<u64, Detail>;

/// The part of an event that depends on its type.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub union Detail {
    pub collective_api: CollectiveApiDetail,
    pub p2p_api: P2pApiDetail,
    pub collective: CollectiveDetail,
    pub p2p: P2pDetail,
    /// The other types, which are as in version 4.
    pub v4: v4::Detail,
}

/// A collective call of the API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct CollectiveApiDetail {
    pub function: *const c_char,
    pub count: usize,
    pub dtype: *const c_char,
    pub root: c_int,
    pub stream: *mut c_void,
    /// A C bool: not of Rust's type, which has two valid values only.
    pub graph_captured: u8,
}

/// A point-to-point call of the API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct P2pApiDetail {
    pub function: *const c_char,
    pub count: usize,
    pub dtype: *const c_char,
    pub stream: *mut c_void,
    /// A C bool.
    pub graph_captured: u8,
}

/// A collective.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct CollectiveDetail {
    pub base: v4::CollectiveDetail,
    pub parent_group: *mut c_void,
}

/// A point-to-point operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct P2pDetail {
    pub base: v4::P2pDetail,
    pub parent_group: *mut c_void,
}

const _: () = {
    assert!(size_of::<EventDescriptor>() == 112);
    assert!(offset_of!(CollectiveApiDetail, function) == 0);
    assert!(offset_of!(CollectiveApiDetail, count) == 8);
    assert!(offset_of!(CollectiveApiDetail, dtype) == 16);
    assert!(offset_of!(CollectiveApiDetail, root) == 24);
    assert!(offset_of!(CollectiveApiDetail, stream) == 32);
    assert!(offset_of!(CollectiveApiDetail, graph_captured) == 40);
    assert!(offset_of!(P2pApiDetail, function) == 0);
    assert!(offset_of!(P2pApiDetail, count) == 8);
    assert!(offset_of!(P2pApiDetail, dtype) == 16);
    assert!(offset_of!(P2pApiDetail, stream) == 24);
    assert!(offset_of!(P2pApiDetail, graph_captured) == 32);
    assert!(offset_of!(CollectiveDetail, parent_group) == 80);
    assert!(offset_of!(P2pDetail, parent_group) == 40);
};

#[allow(clippy::too_many_arguments, reason = "NCCL's signature")]
pub(super) unsafe extern "C" fn init<const EVENTS: u64>(
    context: *mut *mut c_void,
    id: u64,
    activation: *mut c_int,
    name: *const c_char,
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
                event::COLLECTIVE_API => {
                    let CollectiveApiDetail { dtype, graph_captured, .. } = self.collective_api;
                    Descriptor::Api { dtype: text(dtype), captured: graph_captured != 0 }
                }
                event::P2P_API => {
                    let P2pApiDetail { dtype, graph_captured, .. } = self.p2p_api;
                    Descriptor::Api { dtype: text(dtype), captured: graph_captured != 0 }
                }
                event::COLLECTIVE => {
                    Descriptor::Collective(read_collective(&self.collective.base, parent))
                }
                event::P2P => Descriptor::Message(read_message(&self.p2p.base, parent, rank)),
                _ => self.v4.read(event_type, parent, rank),
            }
        }
    }
}
