//! Version 8: sizes of 32 bits.

use std::ffi::{c_int, c_void};
use std::fmt::Display;

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::net::v8::{Net, Properties};
use regatta_plugin_abi::net::{Object, Out};

use super::{given, guard};

/// The table that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclNetPlugin_v8: Net =
    super::functions(super::init, get_properties, super::listen, super::connect, isend, irecv);

unsafe extern "C" fn get_properties(device: c_int, into: *mut Properties) -> NcclResult {
    guard(|| {
        let from = super::properties(device)?;
        // SAFETY: NULL, or valid for writes.
        *given(unsafe { into.as_mut() }, "properties")? = Properties {
            name: from.name,
            pci_path: from.pci_path,
            guid: from.guid,
            pointer_support: from.pointer_support,
            is_registration_global: from.is_registration_global,
            speed: from.speed,
            port: from.port,
            latency: from.latency,
            max_comms: from.max_comms,
            max_recvs: from.max_recvs,
            device_type: from.device_type,
            device_version: from.device_version,
        };
        Ok(())
    })
}

/// Converts the size of a message.
fn size_of<Size: Copy + Display + TryInto<usize>>(size: Size) -> Result<usize, String> {
    size.try_into().map_err(|_| format!("a message of {size} bytes"))
}

/// Also that of version 9.
pub(super) unsafe extern "C" fn isend<Size: Copy + Display + TryInto<usize>>(
    send: Object,
    data: *mut c_void,
    size: Size,
    tag: c_int,
    registration: Object,
    request: Out,
) -> NcclResult {
    match size_of(size) {
        // SAFETY: by NCCL's contract.
        Ok(size) => unsafe { super::isend(send, (data, size), tag, registration, request) },
        Err(why) => guard(|| Err(why)),
    }
}

/// Also that of version 9.
pub(super) unsafe extern "C" fn irecv<Size: Copy + Display + TryInto<usize>>(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut Size,
    tags: *mut c_int,
    registrations: *mut Object,
    request: Out,
) -> NcclResult {
    // SAFETY: the array has as many elements as the group.
    let size = |index: usize| size_of(unsafe { super::element(sizes, index)? });
    // SAFETY: by NCCL's contract.
    unsafe { super::irecv(recv, count, data, size, (tags, registrations), request) }
}
