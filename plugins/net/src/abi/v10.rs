//! Version 10: settings of a communicator, profiler handles.

use std::ffi::{c_int, c_void};

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::log::Logger;
use regatta_plugin_abi::net::v10::Net;
use regatta_plugin_abi::net::{CommConfig, Object, Out, ProfilerCallback};

/// The table that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclNetPlugin_v10: Net = Net {
    functions: super::functions(init, super::get_properties, super::listen, connect, isend, irecv),
    make_v_device: None,
};

unsafe extern "C" fn init(logger: Logger, _profiler: ProfilerCallback) -> NcclResult {
    super::init(logger)
}

unsafe extern "C" fn connect(
    device: c_int,
    _config: *mut CommConfig,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    unsafe { super::connect(device, handle, send, offload) }
}

/// `isend` with a profiler handle.
pub(super) unsafe extern "C" fn isend(
    send: Object,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    registration: Object,
    _profiler: *mut c_void,
    request: Out,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    unsafe { super::isend(send, (data, size), tag, registration, request) }
}

/// `irecv` with profiler handles.
pub(super) unsafe extern "C" fn irecv(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut Object,
    _profiler: *mut *mut c_void,
    request: Out,
) -> NcclResult {
    // SAFETY: the array has as many elements as the group.
    let size = |index: usize| unsafe { super::element(sizes, index) };
    // SAFETY: by NCCL's contract.
    unsafe { super::irecv(recv, count, data, size, (tags, registrations), request) }
}
