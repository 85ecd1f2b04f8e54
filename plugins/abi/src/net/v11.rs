//! Version 11: a context per communicator, NCCL 2.28 and later.

use std::ffi::{c_int, c_void};

use super::{Close, CommConfig, Irecv, Isend, Out, ProfilerCallback, Unused};
use crate::NcclResult;
use crate::log::Logger;

/// The properties of a NIC.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    /// As in version 9.
    pub common: super::Properties,
    /// The most requests that a grouped request combines.
    pub max_multi_request_size: c_int,
}

/// `init`, once for each communicator.
pub type Init = unsafe extern "C" fn(
    context: Out,
    comm_id: u64,
    config: *mut CommConfig,
    logger: Logger,
    profiler: ProfilerCallback,
) -> NcclResult;
/// `listen`, with the context of the communicator.
pub type Listen = unsafe extern "C" fn(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: Out,
) -> NcclResult;
/// `connect`, with the context of the communicator.
pub type Connect = unsafe extern "C" fn(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult;

/// The functions as in version 8, with those of this version.
pub type Functions = super::Functions<Init, Properties, Listen, Connect, Isend, Irecv>;

/// The table of functions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Net {
    /// As in version 8.
    pub functions: Functions,
    /// `makeVDevice`.
    pub make_v_device: Unused,
    /// `finalize`, with the context.
    pub finalize: Close,
    /// `setNetAttr`: hints about the traffic of a communicator.
    pub set_net_attr: Unused,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Properties, max_multi_request_size) == 104);
    assert!(size_of::<Properties>() == 112);
    assert!(size_of::<Net>() == 176);
};
