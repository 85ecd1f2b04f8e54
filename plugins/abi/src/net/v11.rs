//! Version 11: a context per communicator, NCCL 2.28 and later.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Accept, Close, CommConfig, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, Irecv,
    IrecvConsumed, Isend, MakeVDevice, Out, ProfilerCallback, RegMr, RegMrDmaBuf, Test,
};
use crate::NcclResult;
use crate::log::Logger;

/// Symbol of the table.
pub const SYMBOL: &std::ffi::CStr = c"ncclNetPlugin_v11";

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
/// `setNetAttr`, whose attributes this project does not read.
pub type SetNetAttr =
    unsafe extern "C" fn(context: *mut c_void, attributes: *mut c_void) -> NcclResult;

/// The table of functions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Net {
    /// The name that NCCL logs.
    pub name: *const c_char,
    /// `init`.
    pub init: Init,
    /// `devices`.
    pub devices: Devices,
    /// `getProperties`.
    pub get_properties: GetProperties<Properties>,
    /// `listen`.
    pub listen: Listen,
    /// `connect`.
    pub connect: Connect,
    /// `accept`.
    pub accept: Accept,
    /// `regMr`.
    pub reg_mr: RegMr,
    /// `regMrDmaBuf`; NULL without dma-buf support.
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// `deregMr`.
    pub dereg_mr: DeregMr,
    /// `isend`.
    pub isend: Isend,
    /// `irecv`.
    pub irecv: Irecv,
    /// `iflush`.
    pub iflush: Iflush,
    /// `test`.
    pub test: Test,
    /// `closeSend`.
    pub close_send: Close,
    /// `closeRecv`.
    pub close_recv: Close,
    /// `closeListen`.
    pub close_listen: Close,
    /// `getDeviceMr`.
    pub get_device_mr: Option<GetDeviceMr>,
    /// `irecvConsumed`.
    pub irecv_consumed: Option<IrecvConsumed>,
    /// `makeVDevice`.
    pub make_v_device: Option<MakeVDevice>,
    /// `finalize`, with the context.
    pub finalize: Close,
    /// `setNetAttr`: hints about the traffic of a communicator.
    pub set_net_attr: Option<SetNetAttr>,
}

// SAFETY: pointers to constants.
unsafe impl Sync for Net {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Properties, max_multi_request_size) == 104);
    assert!(size_of::<Properties>() == 112);
    assert!(offset_of!(Net, connect) == 40 && offset_of!(Net, isend) == 80);
    assert!(offset_of!(Net, test) == 104 && offset_of!(Net, irecv_consumed) == 144);
    assert!(size_of::<Net>() == 176);
};
