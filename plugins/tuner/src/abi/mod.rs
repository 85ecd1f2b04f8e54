//! NCCL's tuner interface: one file per version, and what they share.

pub mod v3;
pub mod v4;
pub mod v5;

#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

use regatta_nccl_tuning::select::{Call, CostTable};
use regatta_nccl_tuning::{Communicator, Function};
use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::log::Logger;

use crate::session::{self, Tuner};

/// The name that NCCL logs.
pub(crate) const NAME: *const c_char = c"Regatta".as_ptr();

/// Larger cost tables are not NCCL's: it has 7 algorithms and 3 protocols.
const MAX_ALGORITHMS: c_int = 64;
const MAX_PROTOCOLS: c_int = 16;

/// A table, with the functions that differ between versions.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct Table<Init, GetCollInfo> {
    pub name: *const c_char,
    pub init: Init,
    pub get_coll_info: GetCollInfo,
    /// `finalize` from version 5 on.
    pub destroy: unsafe extern "C" fn(*mut c_void) -> NcclResult,
}

// SAFETY: a table is constant, and its name is a constant text.
unsafe impl<I: Sync, G: Sync> Sync for Table<I, G> {}

const _: () = {
    type Any = Table<fn(), fn()>;
    assert!(size_of::<Any>() == 32);
    assert!(offset_of!(Any, init) == 8);
    assert!(offset_of!(Any, get_coll_info) == 16);
    assert!(offset_of!(Any, destroy) == 24);
};

/// Runs the body of a function of the boundary, see [`regatta_plugin_abi::guard`].
#[inline]
pub(crate) fn guard(work: impl FnOnce()) -> NcclResult {
    regatta_plugin_abi::guard(|| {
        #[cfg(test)]
        tests::panic_if_injected();
        work();
    })
}

/// Opens a communicator: the part of `init` that all versions share.
///
/// # Safety
/// `context` is NULL or valid for writes.
unsafe fn init(context: *mut *mut c_void, ranks: usize, nodes: usize, logger: Logger) {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return };
    *context = std::ptr::null_mut();
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let communicator = Communicator { ranks: number(ranks), nodes: number(nodes) };
    if let Some(tuner) = session::open(communicator, logger) {
        *context = std::ptr::from_ref(tuner).cast_mut().cast();
    }
}

/// The arguments of `getCollInfo`, in all versions.
#[derive(Debug, Clone, Copy)]
struct CollInfo {
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipe_ops: c_int,
    /// NCCL declares `float**`, and passes `float[algorithms][protocols]`.
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
}

/// `getCollInfo` of all versions.
///
/// # Safety
/// `context` is what [`init`] set, `costs` is NULL or an array of `algorithms * protocols` numbers, and
/// `channels` is NULL or valid for writes.
unsafe fn get_coll_info(info: CollInfo) {
    let Some(function) = Function::from_number(info.function) else { return };
    let is_in_range = (1..=MAX_ALGORITHMS).contains(&info.algorithms)
        && (1..=MAX_PROTOCOLS).contains(&info.protocols);
    let (Some(context), Some(costs)) = (NonNull::new(info.context), NonNull::new(info.costs))
    else {
        return;
    };
    if !is_in_range {
        return;
    }
    let (algorithms, protocols) = (info.algorithms as usize, info.protocols as usize);
    // SAFETY: a context is a tuner that is never freed; the costs are valid by the caller's contract, and
    // NCCL does not use them during the call.
    let (tuner, costs) = unsafe {
        let costs = std::slice::from_raw_parts_mut(costs.as_ptr(), algorithms * protocols);
        (context.cast::<Tuner>().as_ref(), costs)
    };
    let call = Call { function, bytes: info.bytes as u64, is_aggregated: info.pipe_ops > 1 };
    let chosen = tuner.select(call, &mut CostTable { costs, protocols });
    // SAFETY: NULL or valid for writes by the caller's contract.
    if let (Some(choice), Some(channels)) = (chosen, unsafe { info.channels.as_mut() })
        && choice.channels > 0
    {
        *channels = c_int::from(choice.channels);
    }
}

/// `destroy` of versions 3 and 4, `finalize` of version 5. Tuners are shared by communicators of a size, and
/// stay.
pub(crate) unsafe extern "C" fn destroy(_: *mut c_void) -> NcclResult {
    guard(|| {})
}
