//! Version 8: NCCL 2.20 and later, RCCL of ROCm 6.2 and later.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Accept, Close, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, IrecvConsumed, Listen,
    Object, Out, RegMr, RegMrDmaBuf, Test,
};
use crate::NcclResult;
use crate::log::Logger;

/// Symbol of the table.
pub const SYMBOL: &std::ffi::CStr = c"ncclNetPlugin_v8";

/// The properties of a NIC.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    /// Name, for logs.
    pub name: *const c_char,
    /// Path of the PCI device in `/sys`, or NULL.
    pub pci_path: *const c_char,
    /// Identifies the chip.
    pub guid: u64,
    /// [`super::PTR_HOST`], [`super::PTR_CUDA`], [`super::PTR_DMABUF`].
    pub pointer_support: c_int,
    /// Whether registrations hold for all connections of the device.
    pub is_registration_global: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// Number of the port.
    pub port: c_int,
    /// Microseconds; 0 if unknown.
    pub latency: f32,
    /// The most connections.
    pub max_comms: c_int,
    /// The most receives of a group.
    pub max_recvs: c_int,
    /// [`super::DEVICE_HOST`].
    pub device_type: c_int,
    /// [`super::DEVICE_INVALID_VERSION`].
    pub device_version: c_int,
}

/// `connect`.
pub type Connect =
    unsafe extern "C" fn(device: c_int, handle: *mut c_void, send: Out, offload: Out) -> NcclResult;
/// `isend`: sizes are 32 bits wide.
pub type Isend = unsafe extern "C" fn(
    send: Object,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    registration: Object,
    request: Out,
) -> NcclResult;
/// `irecv`: sizes are 32 bits wide.
pub type Irecv = unsafe extern "C" fn(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
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
}

// SAFETY: pointers to constants.
unsafe impl Sync for Net {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Properties>() == 64 && offset_of!(Properties, speed) == 32);
    assert!(offset_of!(Properties, latency) == 40 && offset_of!(Properties, device_version) == 56);
    assert!(offset_of!(Net, connect) == 40 && offset_of!(Net, isend) == 80);
    assert!(offset_of!(Net, test) == 104 && offset_of!(Net, irecv_consumed) == 144);
    assert!(size_of::<Net>() == 152);
};
