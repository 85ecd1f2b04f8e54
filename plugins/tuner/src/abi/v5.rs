//! Version 5: NCCL 2.28 and later. Adds NVLink domains and the constants of NCCL's cost model to `init`;
//! neither is used.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

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
    nvl_domains: *mut NvlDomainInfo,
    constants: *mut Constants,
) -> NcclResult;

/// NVLink domains of a communicator.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct NvlDomainInfo {
    pub domains: c_int,
    pub min_ranks: c_int,
    pub max_ranks: c_int,
}

/// Numbers of algorithms, protocols, kinds of links, generations of GPUs and scales.
const ALGORITHMS: usize = 7;
const PROTOCOLS: usize = 3;
const LINKS: usize = 3;
const GENERATIONS: usize = 4;
const SCALES: usize = 3;

/// The constants of NCCL's cost model.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub struct Constants {
    pub base_latencies: [[f64; PROTOCOLS]; ALGORITHMS],
    pub hw_latencies: [[[f64; PROTOCOLS]; ALGORITHMS]; LINKS],
    pub ll_max_bws: [[f64; SCALES]; GENERATIONS],
    pub per_channel_max_ring_ll128_bws: [[f64; SCALES]; GENERATIONS],
    pub per_channel_max_tree_ll128_bws: [[f64; SCALES]; GENERATIONS],
    pub per_channel_max_tree_bws: [[f64; SCALES]; GENERATIONS],
    pub per_channel_max_nvls_tree_bws: [[f64; SCALES]; GENERATIONS],
}

const _: () = {
    type C = Constants;
    assert!(size_of::<NvlDomainInfo>() == 12);
    assert!(offset_of!(NvlDomainInfo, min_ranks) == 4);
    assert!(offset_of!(NvlDomainInfo, max_ranks) == 8);
    assert!(size_of::<C>() == 1152);
    assert!(offset_of!(C, base_latencies) == 0);
    assert!(offset_of!(C, hw_latencies) == 168);
    assert!(offset_of!(C, ll_max_bws) == 672);
    assert!(offset_of!(C, per_channel_max_ring_ll128_bws) == 768);
    assert!(offset_of!(C, per_channel_max_tree_ll128_bws) == 864);
    assert!(offset_of!(C, per_channel_max_tree_bws) == 960);
    assert!(offset_of!(C, per_channel_max_nvls_tree_bws) == 1056);
};

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
    _nvl_domains: *mut NvlDomainInfo,
    _constants: *mut Constants,
) -> NcclResult {
    // SAFETY: NCCL passes valid pointers.
    guard(|| unsafe { super::init(context, ranks, nodes, logger) })
}
