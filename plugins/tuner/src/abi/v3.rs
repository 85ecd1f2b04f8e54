//! Version 3: NCCL 2.22 and 2.23.

use std::ffi::{c_int, c_void};

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::log::Logger;

use super::{CollInfo, NAME, Table, guard};

/// The table.
pub type Tuner = Table<Init, GetCollInfo>;
/// The function that opens a communicator.
pub type Init = unsafe extern "C" fn(usize, usize, Logger, *mut *mut c_void) -> NcclResult;

/// The function that is called for each collective.
pub type GetCollInfo = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclTunerPlugin_v3: Tuner =
    Tuner { name: NAME, init, get_coll_info, destroy: super::destroy };

pub(super) unsafe extern "C" fn init(
    ranks: usize,
    nodes: usize,
    logger: Logger,
    context: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::init(context, ranks, nodes, logger) })
}

pub(super) unsafe extern "C" fn get_coll_info(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> NcclResult {
    let costs = costs.cast();
    let info =
        CollInfo { context, function, bytes, pipe_ops, costs, algorithms, protocols, channels };
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::get_coll_info(info) })
}
