//! Version 6: NCCL 2.29 and later. It adds the collectives of the copy engines to version 5.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::{EventDetail, Table, event, v5};
use crate::handle::Handle;
use crate::model::{Collective, Descriptor, text};

const EVENTS: u64 = v5::EVENTS | event::COPY_ENGINE_COLLECTIVE;

/// The table.
pub type Profiler = Table<v5::Init, EventDescriptor, u64>;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclProfiler_v6: Profiler = Profiler::new(v5::init::<EVENTS>, super::record_event_state);

/// An event.
pub type EventDescriptor = super::EventDescriptor<u64, Detail>;

/// The part of an event that depends on its type.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub union Detail {
    /// The types of version 5.
    pub v5: v5::Detail,
    pub copy_engine: CopyEngineDetail,
}

/// A collective of the copy engines.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct CopyEngineDetail {
    pub sequence: u64,
    pub function: *const c_char,
    pub send_buffer: *const c_void,
    pub receive_buffer: *mut c_void,
    pub count: usize,
    pub root: c_int,
    pub dtype: *const c_char,
    pub sync_strategy: *const c_char,
    /// A C bool.
    pub intra_batch_sync: u8,
    pub batch_size: u32,
    pub batches: u32,
    pub copy_engine_sequence: u32,
    pub stream: *mut c_void,
}

const _: () = {
    type C = CopyEngineDetail;
    assert!(size_of::<EventDescriptor>() == 112);
    assert!(size_of::<C>() == 88);
    assert!(offset_of!(C, sequence) == 0);
    assert!(offset_of!(C, function) == 8);
    assert!(offset_of!(C, send_buffer) == 16);
    assert!(offset_of!(C, receive_buffer) == 24);
    assert!(offset_of!(C, count) == 32);
    assert!(offset_of!(C, root) == 40);
    assert!(offset_of!(C, dtype) == 48);
    assert!(offset_of!(C, sync_strategy) == 56);
    assert!(offset_of!(C, intra_batch_sync) == 64);
    assert!(offset_of!(C, batch_size) == 68);
    assert!(offset_of!(C, batches) == 72);
    assert!(offset_of!(C, copy_engine_sequence) == 76);
    assert!(offset_of!(C, stream) == 80);
};

impl EventDetail for Detail {
    unsafe fn read(&self, event_type: u64, parent: Handle, rank: c_int) -> Descriptor<'_> {
        // SAFETY: the type selects the member of the union, and NCCL's texts are C strings.
        unsafe {
            match event_type {
                event::COPY_ENGINE_COLLECTIVE => {
                    Descriptor::CopyEngine(read_copy_engine(&self.copy_engine, parent))
                }
                _ => self.v5.read(event_type, parent, rank),
            }
        }
    }
}

/// # Safety
/// The texts are valid.
unsafe fn read_copy_engine(detail: &CopyEngineDetail, api: Handle) -> Collective<'_> {
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
            channels: 0,
            algorithm: None,
            protocol: None,
        }
    }
}
