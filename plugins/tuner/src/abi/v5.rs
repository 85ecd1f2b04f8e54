//! Version 5: NCCL 2.28 and later. Adds NVLink domains and the constants of NCCL's cost model to `init`;
//! neither is used.

use std::ffi::c_void;

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::log::Logger;

use super::v4::{GetCollInfo, get_coll_info};
use super::{NAME, Table, guard};

/// The table.
pub type Tuner = Table<Init, GetCollInfo>;

/// The function that opens a communicator.
pub type Init = unsafe extern "C" fn(
    context: *mut *mut c_void,
    comm_id: u64,
    ranks: usize,
    nodes: usize,
    logger: Logger,
    nvl_domains: *mut c_void,
    constants: *mut c_void,
) -> NcclResult;

/// The exported table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclTunerPlugin_v5: Tuner =
    Tuner { name: NAME, init, get_coll_info, destroy: super::destroy };

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _comm_id: u64,
    ranks: usize,
    nodes: usize,
    logger: Logger,
    _nvl_domains: *mut c_void,
    _constants: *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::init(context, ranks, nodes, logger) })
}
