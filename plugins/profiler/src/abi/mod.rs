//! NCCL's profiler interface: one file per version, and what they share.

pub mod v3;
pub mod v4;
pub mod v5;
pub mod v6;

#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, Ordering};

use regatta_events::record::settings::Level;

use crate::handle::Handle;
use crate::log::Logger;
use crate::model::{CommunicatorFacts, Descriptor};
use crate::pause;
use crate::session::{self, Opened};

pub use regatta_plugin_abi::{NcclResult, SUCCESS};

/// The name that NCCL logs.
const NAME: *const c_char = c"Regatta".as_ptr();

/// Event types, by NCCL's numbers.
pub mod event {
    /// A group of operations.
    pub const GROUP: u64 = 1;
    /// A collective.
    pub const COLLECTIVE: u64 = 1 << 1;
    /// A point-to-point operation.
    pub const P2P: u64 = 1 << 2;
    /// A network transfer.
    pub const PROXY_OP: u64 = 1 << 3;
    /// A step of a network transfer.
    pub const PROXY_STEP: u64 = 1 << 4;
    /// A kernel on a channel.
    pub const KERNEL_CHANNEL: u64 = 1 << 6;
    /// A collective call of the API, from version 5 on.
    pub const COLLECTIVE_API: u64 = 1 << 9;
    /// A point-to-point call of the API, from version 5 on.
    pub const P2P_API: u64 = 1 << 10;
    /// A collective of the copy engines, from version 6 on.
    pub const COPY_ENGINE_COLLECTIVE: u64 = 1 << 12;
}

/// A network transfer, in all versions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct ProxyOp {
    pub pid: libc::pid_t,
    pub channel_id: u8,
    pub peer: c_int,
    pub n_steps: c_int,
    pub chunk_size: c_int,
    pub is_send: c_int,
}

const _: () = {
    assert!(size_of::<ProxyOp>() == 24);
    assert!(offset_of!(ProxyOp, channel_id) == 4);
    assert!(offset_of!(ProxyOp, peer) == 8);
    assert!(offset_of!(ProxyOp, n_steps) == 12);
    assert!(offset_of!(ProxyOp, chunk_size) == 16);
    assert!(offset_of!(ProxyOp, is_send) == 20);
};

/// A step of a network transfer, in all versions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct ProxyStep {
    pub step: c_int,
}

/// A kernel on a channel, from version 4 on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct KernelChannel {
    pub channel_id: u8,
    pub p_timer: u64,
}

const _: () = {
    assert!(size_of::<ProxyStep>() == 4);
    assert!(size_of::<KernelChannel>() == 16);
    assert!(offset_of!(KernelChannel, p_timer) == 8);
};

/// A table of functions: what a library exports.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct Table<Init, EventDescriptor, StateArguments> {
    pub name: *const c_char,
    pub init: Init,
    pub start_event:
        unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const EventDescriptor) -> NcclResult,
    pub stop_event: unsafe extern "C" fn(*mut c_void) -> NcclResult,
    pub record_event_state:
        unsafe extern "C" fn(*mut c_void, c_int, *const StateArguments) -> NcclResult,
    pub finalize: unsafe extern "C" fn(*mut c_void) -> NcclResult,
}

impl<Init, T: Copy + Into<u64>, D: EventDetail, A> Table<Init, EventDescriptor<T, D>, A> {
    /// The table of a version, with the functions that differ between versions.
    const fn new(
        init: Init,
        record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const A) -> NcclResult,
    ) -> Self {
        Self { name: NAME, init, start_event, stop_event, record_event_state, finalize }
    }
}

// SAFETY: a table is constant, and its name is a constant text.
unsafe impl<I: Sync, E, S> Sync for Table<I, E, S> {}

const _: () = {
    type Any = Table<fn(), (), ()>;
    assert!(size_of::<Any>() == 48);
    assert!(offset_of!(Any, init) == 8);
    assert!(offset_of!(Any, start_event) == 16);
    assert!(offset_of!(Any, stop_event) == 24);
    assert!(offset_of!(Any, record_event_state) == 32);
    assert!(offset_of!(Any, finalize) == 40);
};

/// An event: `Type` is the integer of its type, `Detail` the part that depends on it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct EventDescriptor<Type, Detail> {
    pub event_type: Type,
    pub parent: *mut c_void,
    pub rank: c_int,
    pub detail: Detail,
}

const _: () = {
    assert!(offset_of!(EventDescriptor<u8, u64>, parent) == 8);
    assert!(offset_of!(EventDescriptor<u64, u64>, parent) == 8);
    assert!(offset_of!(EventDescriptor<u64, u64>, rank) == 16);
    assert!(offset_of!(EventDescriptor<u64, u64>, detail) == 24);
};

/// The part of an event that depends on its type, of a version.
pub trait EventDetail {
    /// What the event describes.
    ///
    /// # Safety
    /// The detail is that of the type, and its texts are valid.
    unsafe fn read(&self, event_type: u64, parent: Handle, rank: c_int) -> Descriptor<'_>;
}

/// Runs the body of a function of the boundary, see [`regatta_plugin_abi::guard`].
#[inline]
pub(crate) fn guard(work: impl FnOnce()) -> NcclResult {
    regatta_plugin_abi::guard(|| {
        #[cfg(test)]
        tests::panic_if_injected();
        work();
    })
}

/// The events that a version reports, for a level.
fn mask(level: Level, version: u64) -> c_int {
    let mut mask = event::COLLECTIVE
        | event::P2P
        | event::KERNEL_CHANNEL
        | event::COLLECTIVE_API
        | event::P2P_API
        | event::COPY_ENGINE_COLLECTIVE;
    if level >= Level::Network {
        mask |= event::PROXY_OP;
    }
    if level >= Level::Steps {
        mask |= event::PROXY_STEP;
    }
    (mask & version) as c_int
}

/// Opens a communicator: the part of `init` that all versions share.
///
/// # Safety
/// `context` and `activation` are NULL or valid for writes, `activation` as long as the process lives.
unsafe fn init(
    context: *mut *mut c_void,
    activation: *mut c_int,
    facts: Option<CommunicatorFacts<'_>>,
    logger: Logger,
    version: u64,
) {
    // SAFETY: by the caller's contract.
    let (Some(context), false) = (unsafe { context.as_mut() }, activation.is_null()) else {
        return;
    };
    *context = std::ptr::null_mut();
    match session::open(facts, logger) {
        // SAFETY: not NULL; other threads of NCCL read it atomically.
        Opened::Disabled => unsafe { AtomicI32::from_ptr(activation) }.store(0, Ordering::Relaxed),
        // The mask is that of the whole process.
        Opened::Skipped => {}
        Opened::Recorded(session, communicator) => {
            // SAFETY: a global variable of NCCL.
            unsafe { pause::set_mask(activation, mask(session.level, version)) };
            *context = std::ptr::without_provenance_mut(communicator as usize);
        }
    }
}

/// `startEvent` of all versions.
unsafe extern "C" fn start_event<T: Copy + Into<u64>, D: EventDetail>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const EventDescriptor<T, D>,
) -> NcclResult {
    guard(|| {
        // SAFETY: NCCL passes NULL or valid pointers.
        let (handle, event) = unsafe { (handle.as_mut(), event.as_ref()) };
        let Some(handle) = handle else { return };
        // NCCL reuses the variable, with the handle of an older event.
        *handle = std::ptr::null_mut();
        let (Some(event), Some(session)) = (event, session::current()) else { return };
        let EventDescriptor { event_type, parent, rank, detail } = event;
        let parent = Handle::from_pointer(*parent);
        // SAFETY: NCCL sets the detail of the type, and its texts are C strings.
        let descriptor = unsafe { detail.read((*event_type).into(), parent, *rank) };
        *handle = session.start_event(context.addr() as u32, descriptor).to_pointer();
    })
}

/// `stopEvent` of all versions.
pub(crate) unsafe extern "C" fn stop_event(handle: *mut c_void) -> NcclResult {
    guard(|| {
        if let (false, Some(session)) = (handle.is_null(), session::current()) {
            session.stop_event(Handle::from_pointer(handle));
        }
    })
}

/// Records a state: the part of `recordEventState` that all versions share.
#[inline]
fn record_state(handle: *mut c_void, state: c_int, value: u64) {
    if let (false, Some(session)) = (handle.is_null(), session::current()) {
        session.record_state(Handle::from_pointer(handle), state, value);
    }
}

/// `recordEventState` from version 4 on. The arguments are a union, of which only numbers of 8 bytes are used:
/// the size of a step's transfer, or the device time of a kernel's end.
pub(crate) unsafe extern "C" fn record_event_state(
    handle: *mut c_void,
    state: c_int,
    arguments: *const u64,
) -> NcclResult {
    guard(|| {
        // SAFETY: NULL or valid for reads.
        let value = unsafe { arguments.as_ref() };
        record_state(handle, state, value.copied().unwrap_or(0));
    })
}

/// `finalize` of all versions.
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    guard(|| {
        if let (false, Some(session)) = (context.is_null(), session::current()) {
            session.close(context.addr() as u32);
        }
    })
}
