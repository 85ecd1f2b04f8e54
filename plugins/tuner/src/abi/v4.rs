//! Version 4: NCCL 2.24 to 2.27. Adds whether the buffers of a call are registered, which is not used: it may
//! differ between ranks, and a selection must not.

use std::ffi::{c_int, c_void};

use regatta_plugin_abi::NcclResult;

use super::v3::{self, Init, init};
use super::{NAME, Table};

/// The table.
pub type Tuner = Table<Init, GetCollInfo>;

/// The function that is called for each collective.
pub type GetCollInfo = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclTunerPlugin_v4: Tuner =
    Tuner { name: NAME, init, get_coll_info, destroy: super::destroy };

/// Also that of version 5.
pub(super) unsafe extern "C" fn get_coll_info(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _registered: c_int,
    channels: *mut c_int,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    unsafe {
        v3::get_coll_info(
            context, function, bytes, pipe_ops, costs, algorithms, protocols, channels,
        )
    }
}
