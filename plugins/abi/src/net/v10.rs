//! Version 10: settings of a communicator, profiler handles, NCCL 2.25 and later.

use std::ffi::{c_int, c_void};

pub use super::Properties;
use super::{CommConfig, Irecv, Isend, Listen, Out, ProfilerCallback};
use crate::NcclResult;
use crate::log::Logger;

/// `connect`, with the settings of the communicator.
pub type Connect = unsafe extern "C" fn(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult;

/// The functions as in version 8, with those of this version.
pub type Functions = super::Functions<
    unsafe extern "C" fn(Logger, ProfilerCallback) -> NcclResult,
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
