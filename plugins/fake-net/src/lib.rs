//! Tests only: a net plug-in over TCP on the loopback interface, for hosts of plug-ins. It uses every
//! freedom that the interface has, as often as it can: `connect` and `accept` return no connection yet,
//! `isend` and `irecv` no request, and `test` reports that nothing has happened. It fails if its host
//! breaks the contract: calls for a connection at the same time, more than 32 requests, memory that is not
//! registered, requests that are not tested in order, a handle that moves, a listener that is reused.
//!
//! `NCCL_NET_FAKE_FAIL` names a function that fails, and `NCCL_NET_FAKE_DEVICES` the number of NICs.

#![allow(non_upper_case_globals, reason = "the symbols of NCCL")]

mod connection;
mod setup;
mod transfer;

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use regatta_plugin_abi::log::{Level, Logger, log};
use regatta_plugin_abi::net::{
    CommConfig, Functions, GetProperties, Object, Out, PTR_HOST, ProfilerCallback, Properties,
    VirtualDevice, v8, v9, v10, v11,
};
use regatta_plugin_abi::{NcclResult, SUCCESS};

use connection::{close, dereg_mr, reg_mr};
use setup::{accept, close_listen, connect, connect_v10, connect_v11, listen, listen_v11};
use transfer::{iflush, irecv, irecv_v8, irecv_v9, isend, isend_v8, isend_v9, test};

/// NCCL's results.
pub(crate) const SYSTEM_ERROR: NcclResult = 2;
pub(crate) const INVALID_USAGE: NcclResult = 5;
pub(crate) const REMOTE_ERROR: NcclResult = 6;

const NAME: *const c_char = c"Fake".as_ptr();

/// The context of version 11.
pub(crate) const CONTEXT: *mut c_void = std::ptr::without_provenance_mut(0xfa4e);

static LOGGER: Mutex<Logger> = Mutex::new(None);

/// Logs a violation of the contract, or another error.
pub(crate) fn warn(message: &str, result: NcclResult) -> NcclResult {
    let logger = *LOGGER.lock().unwrap_or_else(PoisonError::into_inner);
    log(logger, Level::Warn, &format!("NET/Fake: {message}"));
    result
}

/// Fails if the environment names this function.
pub(crate) fn fail_if_asked(function: &str) -> Result<(), NcclResult> {
    match std::env::var("NCCL_NET_FAKE_FAIL") {
        Ok(name) if name == function => Err(warn("asked to fail", SYSTEM_ERROR)),
        _ => Ok(()),
    }
}

pub(crate) fn code(result: Result<(), NcclResult>) -> NcclResult {
    result.err().unwrap_or(SUCCESS)
}

/// True once in `times` calls, by a sequence that is the same in each run.
pub(crate) fn once_in(times: u64) -> bool {
    static STATE: AtomicU64 = AtomicU64::new(1);
    let x = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 27)).is_multiple_of(times)
}

pub(crate) fn device_count() -> c_int {
    let count = std::env::var("NCCL_NET_FAKE_DEVICES").ok().and_then(|text| text.parse().ok());
    count.unwrap_or(2)
}

unsafe extern "C" fn init(logger: Logger) -> NcclResult {
    *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = logger;
    code(fail_if_asked("init"))
}

unsafe extern "C" fn init_v10(logger: Logger, profiler: ProfilerCallback) -> NcclResult {
    if profiler.is_null() {
        return warn("init without the profiler's function", INVALID_USAGE);
    }
    // SAFETY: as above.
    unsafe { init(logger) }
}

unsafe extern "C" fn init_v11(
    context: Out,
    _: u64,
    config: *mut CommConfig,
    logger: Logger,
    profiler: ProfilerCallback,
) -> NcclResult {
    if config.is_null() || profiler.is_null() {
        return warn("init without settings or the profiler's function", INVALID_USAGE);
    }
    // SAFETY: the host passes where to write the context.
    unsafe {
        *context = CONTEXT;
        init(logger)
    }
}

unsafe extern "C" fn finalize(context: Object) -> NcclResult {
    if context == CONTEXT { SUCCESS } else { warn("finalize of another context", INVALID_USAGE) }
}

unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    // SAFETY: the host passes where to write the count.
    unsafe { *count = device_count() };
    code(fail_if_asked("devices"))
}

fn device_name(device: c_int) -> *const c_char {
    if device == 0 { c"fake0".as_ptr() } else { c"fake1".as_ptr() }
}

unsafe extern "C" fn properties_v8(device: c_int, into: *mut v8::Properties) -> NcclResult {
    // SAFETY: zeroes are valid values, and the host passes where to write them.
    unsafe {
        let empty: v8::Properties = MaybeUninit::zeroed().assume_init();
        *into = v8::Properties {
            name: device_name(device),
            pointer_support: PTR_HOST,
            max_recvs: 1,
            ..empty
        };
    }
    SUCCESS
}

unsafe extern "C" fn properties(device: c_int, into: *mut Properties) -> NcclResult {
    // SAFETY: as above.
    unsafe {
        let empty: Properties = MaybeUninit::zeroed().assume_init();
        *into = Properties {
            name: device_name(device),
            pointer_support: PTR_HOST,
            max_recvs: 1,
            members: VirtualDevice::single(device),
            // A host must not send larger messages.
            max_p2p_bytes: transfer::MAX_BYTES,
            ..empty
        };
    }
    SUCCESS
}

unsafe extern "C" fn properties_v11(device: c_int, into: *mut v11::Properties) -> NcclResult {
    // SAFETY: as above.
    unsafe { properties(device, &raw mut (*into).common) }
}

/// The table of a version.
const fn functions<Init, P, Listen, Connect, Isend, Irecv>(
    init: Init,
    get_properties: GetProperties<P>,
    listen: Listen,
    connect: Connect,
    isend: Isend,
    irecv: Irecv,
) -> Functions<Init, P, Listen, Connect, Isend, Irecv> {
    Functions {
        name: NAME,
        init,
        devices,
        get_properties,
        listen,
        connect,
        accept,
        reg_mr,
        reg_mr_dma_buf: None,
        dereg_mr,
        isend,
        irecv,
        iflush,
        test,
        close_send: close,
        close_recv: close,
        close_listen,
        get_device_mr: None,
        irecv_consumed: None,
    }
}

/// The table of version 8.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: v8::Net =
    functions(init, properties_v8, listen, connect, isend_v8, irecv_v8);

/// The table of version 9.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: v9::Net = v9::Net {
    functions: functions(init, properties, listen, connect, isend_v9, irecv_v9),
    make_v_device: None,
};

/// The table of version 10.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: v10::Net = v10::Net {
    functions: functions(init_v10, properties, listen, connect_v10, isend, irecv),
    make_v_device: None,
};

/// The table of version 11.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: v11::Net = v11::Net {
    functions: functions(init_v11, properties_v11, listen_v11, connect_v11, isend, irecv),
    make_v_device: None,
    finalize,
    set_net_attr: None,
};
