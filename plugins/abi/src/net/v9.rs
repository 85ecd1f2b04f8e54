//! Version 9: sizes of 64 bits, virtual devices, NCCL 2.23 and later.

use std::ffi::{c_char, c_int, c_void};

pub use super::Properties;
use super::{
    Accept, Close, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, IrecvConsumed, Listen,
    MakeVDevice, Object, Out, RegMr, RegMrDmaBuf, Test,
};
use crate::NcclResult;
use crate::log::Logger;

/// Symbol of the table.
pub const SYMBOL: &std::ffi::CStr = c"ncclNetPlugin_v9";

/// `connect`.
pub type Connect =
    unsafe extern "C" fn(device: c_int, handle: *mut c_void, send: Out, offload: Out) -> NcclResult;
/// `isend`.
pub type Isend = unsafe extern "C" fn(
    send: Object,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    registration: Object,
    request: Out,
) -> NcclResult;
/// `irecv`.
pub type Irecv = unsafe extern "C" fn(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut Object,
    request: Out,
) -> NcclResult;

/// The table of functions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Net {
    /// The name that NCCL logs.
    pub name: *const c_char,
    /// `init`.
    pub init: unsafe extern "C" fn(Logger) -> NcclResult,
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
}

// SAFETY: pointers to constants.
unsafe impl Sync for Net {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Net, connect) == 40 && offset_of!(Net, isend) == 80);
    assert!(offset_of!(Net, test) == 104 && offset_of!(Net, irecv_consumed) == 144);
    assert!(size_of::<Net>() == 160);
};
