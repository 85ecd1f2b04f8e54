//! Version 8: NCCL 2.20 and later, RCCL of ROCm 6.2 and later.

use std::ffi::{c_char, c_int, c_void};

use super::{Connect, Listen, Object, Out};
use crate::NcclResult;
use crate::log::Logger;

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

/// `isend`: sizes are 32 bits wide in this version.
pub type Isend<Size = c_int> = unsafe extern "C" fn(
    send: Object,
    data: *mut c_void,
    size: Size,
    tag: c_int,
    registration: Object,
    request: Out,
) -> NcclResult;
/// `irecv`: sizes are 32 bits wide in this version.
pub type Irecv<Size = c_int> = unsafe extern "C" fn(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut Size,
    tags: *mut c_int,
    registrations: *mut Object,
    request: Out,
) -> NcclResult;

/// The table of functions.
pub type Net = super::Functions<
    unsafe extern "C" fn(Logger) -> NcclResult,
    Properties,
    Listen,
    Connect,
    Isend,
    Irecv,
>;

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Properties>() == 64 && offset_of!(Properties, speed) == 32);
    assert!(offset_of!(Properties, latency) == 40 && offset_of!(Properties, device_version) == 56);
    assert!(size_of::<Net>() == 152);
};
