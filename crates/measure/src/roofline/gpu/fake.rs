//! A fake runtime and BLAS library backed by host memory.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use regatta_comm::gpu_runtime::{RawEvent, Runtime, Stream, Vendor};

use super::blas_sys::{BlasFunctions, BlasHandle, GemmFn};
use super::{Blas, RooflineGpu};

thread_local! {
    /// Live allocations.
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
    /// GEMM calls until one fails.
    static GEMM_CALLS_LEFT: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// Live allocations of this thread.
pub(in super::super) fn allocated() -> i64 {
    ALLOCATED.get()
}

/// A fake device, and a BLAS library that fails after `gemm_calls` calls.
pub(in super::super) fn device(gemm_calls: i64) -> (RooflineGpu, Blas) {
    GEMM_CALLS_LEFT.set(gemm_calls);
    let runtime = Runtime {
        vendor: Vendor::Nvidia,
        get_device_count,
        get_device: get_device_count,
        set_device,
        get_device_properties,
        device_get_pci_bus_id,
        mem_get_info,
        malloc,
        free,
        stream_ordered: None,
        host_alloc,
        free_host: free,
        memcpy_async,
        device_get_stream_priority_range,
        stream_create_with_priority,
        stream_destroy: stream_synchronize,
        stream_synchronize,
        stream_query: stream_synchronize,
        stream_wait_event,
        stream_is_capturing,
        thread_exchange_stream_capture_mode: get_device_count,
        graphs: None,
        event_create_with_flags,
        event_record,
        event_query: stream_synchronize,
        event_elapsed_time,
        event_destroy: stream_synchronize,
        get_error_string,
        library: None,
    };
    let device = RooflineGpu::with(runtime, 1).unwrap();
    let gemm = GemmFn::Cublas(gemm_ex);
    let functions =
        BlasFunctions { create: create_handle, destroy, set_stream, gemm, _library: None };
    let blas = Blas::with(functions, &device).unwrap();
    (device, blas)
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer.
    unsafe { *count = 2 };
    0
}

unsafe extern "C" fn set_device(index: c_int) -> c_int {
    c_int::from(index != 1)
}

unsafe extern "C" fn get_device_properties(to: *mut c_void, _number: c_int) -> c_int {
    let name = c"Fake 3000".to_bytes_with_nul();
    // SAFETY: the caller's buffer is larger.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), name.len()) };
    0
}

unsafe extern "C" fn device_get_pci_bus_id(_id: *mut c_char, _len: c_int, _device: c_int) -> c_int {
    0
}

unsafe extern "C" fn mem_get_info(_free: *mut usize, _total: *mut usize) -> c_int {
    0
}

unsafe extern "C" fn malloc(start: *mut *mut c_void, bytes: usize) -> c_int {
    ALLOCATED.set(ALLOCATED.get() + 1);
    // SAFETY: the caller passes a valid pointer.
    unsafe { *start = libc::malloc(bytes) };
    0
}

unsafe extern "C" fn host_alloc(start: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { malloc(start, bytes) }
}

unsafe extern "C" fn free(start: *mut c_void) -> c_int {
    ALLOCATED.set(ALLOCATED.get() - 1);
    // SAFETY: allocated by `malloc` above.
    unsafe { libc::free(start) };
    0
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _direction: c_int,
    _stream: Stream,
) -> c_int {
    // SAFETY: both buffers hold `bytes` bytes.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    0
}

unsafe extern "C" fn device_get_stream_priority_range(_: *mut c_int, _: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn stream_create_with_priority(
    stream: *mut Stream,
    _flags: c_uint,
    _priority: c_int,
) -> c_int {
    // SAFETY: the caller passes a valid pointer.
    unsafe { *stream = null_mut() };
    0
}

unsafe extern "C" fn stream_wait_event(_: Stream, _: RawEvent, _flags: c_uint) -> c_int {
    0
}

unsafe extern "C" fn stream_is_capturing(_: Stream, _status: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn event_create_with_flags(_: *mut RawEvent, _flags: c_uint) -> c_int {
    0
}

unsafe extern "C" fn event_record(_: RawEvent, _: Stream) -> c_int {
    0
}

unsafe extern "C" fn event_elapsed_time(_: *mut f32, _: RawEvent, _: RawEvent) -> c_int {
    0
}

unsafe extern "C" fn stream_synchronize(_stream: Stream) -> c_int {
    0
}

unsafe extern "C" fn get_error_string(_code: c_int) -> *const c_char {
    c"fake error".as_ptr()
}

unsafe extern "C" fn create_handle(handle: *mut BlasHandle) -> c_int {
    // SAFETY: the caller passes a valid pointer.
    unsafe { *handle = null_mut() };
    0
}

unsafe extern "C" fn destroy(_handle: BlasHandle) -> c_int {
    0
}

unsafe extern "C" fn set_stream(_handle: BlasHandle, _stream: Stream) -> c_int {
    0
}

/// Only counts calls; the product is tested on a real GPU.
#[rustfmt::skip]
unsafe extern "C" fn gemm_ex(
    _: BlasHandle, _: c_int, _: c_int, _: c_int, _: c_int, _: c_int,
    _: *const c_void, _: *const c_void, _: c_int, _: c_int,
    _: *const c_void, _: c_int, _: c_int,
    _: *const c_void, _: *mut c_void, _: c_int, _: c_int,
    _: c_int, _: c_int,
) -> c_int {
    GEMM_CALLS_LEFT.set(GEMM_CALLS_LEFT.get() - 1);
    if GEMM_CALLS_LEFT.get() < 0 { 13 } else { 0 }
}
