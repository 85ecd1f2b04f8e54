//! Version 9: sizes of 64 bits, virtual devices, NCCL 2.23 and later.

pub use super::Properties;
use super::{Connect, Listen, v8};
use crate::NcclResult;
use crate::log::Logger;

/// `isend`.
pub type Isend = v8::Isend<usize>;
/// `irecv`.
pub type Irecv = v8::Irecv<usize>;

/// The functions as in version 8, with those of this version.
pub type Functions = super::Functions<
    unsafe extern "C" fn(Logger) -> NcclResult,
    Properties,
    Listen,
    Connect,
    Isend,
    Irecv,
>;

/// The table of functions.
pub type Net = super::VirtualDeviceNet<Functions>;

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Net>() == 160);
