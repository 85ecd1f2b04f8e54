//! Version 11: a context per communicator.

use std::ffi::{c_int, c_void};

use regatta_plugin_abi::log::Logger;
use regatta_plugin_abi::net::v11::{Net, Properties};
use regatta_plugin_abi::net::{CommConfig, Object, Out, ProfilerCallback};
use regatta_plugin_abi::{NcclResult, SUCCESS};

use super::{given, guard, v10};

/// The context of all communicators: they share the NICs of the process.
static CONTEXT: u8 = 0;

/// The table that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclNetPlugin_v11: Net = Net {
    functions: super::functions(init, get_properties, listen, connect, v10::isend, v10::irecv),
    make_v_device: None,
    finalize,
    set_net_attr: None,
};

unsafe extern "C" fn init(
    context: Out,
    _comm_id: u64,
    _config: *mut CommConfig,
    logger: Logger,
    _profiler: ProfilerCallback,
) -> NcclResult {
    // SAFETY: NULL, or valid for writes.
    if let Some(context) = unsafe { context.as_mut() } {
        *context = (&raw const CONTEXT).cast_mut().cast();
    }
    super::init(logger)
}

unsafe extern "C" fn get_properties(device: c_int, into: *mut Properties) -> NcclResult {
    guard(|| {
        let common = super::properties(device)?;
        // SAFETY: NULL, or valid for writes.
        *given(unsafe { into.as_mut() }, "properties")? =
            Properties { common, max_multi_request_size: 1 };
        Ok(())
    })
}

unsafe extern "C" fn listen(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: Out,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    unsafe { super::listen(device, handle, listener) }
}

unsafe extern "C" fn connect(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    unsafe { super::connect(device, handle, send, offload) }
}

/// Endpoints stay open for later communicators.
unsafe extern "C" fn finalize(_context: Object) -> NcclResult {
    SUCCESS
}
