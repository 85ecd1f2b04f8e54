//! A runtime and a BLAS library whose device is the host's memory, to test what uses them.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use regatta_comm::nccl::Vendor;

use super::sys::{BlasFunctions, Handle, Product, Runtime, Stream};
use super::{Blas, Device};

thread_local! {
    /// Allocations that were not freed.
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
    /// Products until one fails.
    static PRODUCTS: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// How many allocations of this thread were not freed.
pub(in super::super) fn allocated() -> i64 {
    ALLOCATED.get()
}

/// A device of this thread, and a library that fails after so many products.
pub(in super::super) fn device(products: i64) -> (Device, Blas) {
    PRODUCTS.set(products);
    let runtime = Runtime {
        vendor: Vendor::Nvidia,
        device_count,
        set_device,
        properties,
        malloc,
        free,
        host_malloc,
        host_free: free,
        copy,
        stream_create,
        stream_destroy: stream_wait,
        stream_wait,
        error_string,
        _library: None,
    };
    let device = Device::with(runtime, 1).unwrap();
    let product = Product::Cublas(gemm_ex);
    let functions =
        BlasFunctions { create: create_handle, destroy, set_stream, product, _library: None };
    let blas = Blas::with(functions, &device).unwrap();
    (device, blas)
}

unsafe extern "C" fn device_count(count: *mut c_int) -> c_int {
    // SAFETY: the caller gives room for a number.
    unsafe { *count = 2 };
    0
}

unsafe extern "C" fn set_device(number: c_int) -> c_int {
    c_int::from(number != 1)
}

unsafe extern "C" fn properties(to: *mut c_void, _number: c_int) -> c_int {
    let name = c"Fake 3000".to_bytes_with_nul();
    // SAFETY: the caller gives room for more.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), name.len()) };
    0
}

unsafe extern "C" fn malloc(start: *mut *mut c_void, bytes: usize) -> c_int {
    ALLOCATED.set(ALLOCATED.get() + 1);
    // SAFETY: the caller gives room for a pointer.
    unsafe { *start = libc::malloc(bytes) };
    0
}

unsafe extern "C" fn host_malloc(start: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    // SAFETY: as the caller says.
    unsafe { malloc(start, bytes) }
}

unsafe extern "C" fn free(start: *mut c_void) -> c_int {
    ALLOCATED.set(ALLOCATED.get() - 1);
    // SAFETY: it was allocated by the function above.
    unsafe { libc::free(start) };
    0
}

unsafe extern "C" fn copy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _direction: c_int,
    _stream: Stream,
) -> c_int {
    // SAFETY: the caller says that both have so many bytes.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    0
}

unsafe extern "C" fn stream_create(stream: *mut Stream, _flags: c_uint) -> c_int {
    // SAFETY: the caller gives room for a pointer.
    unsafe { *stream = null_mut() };
    0
}

unsafe extern "C" fn stream_wait(_stream: Stream) -> c_int {
    0
}

unsafe extern "C" fn error_string(_code: c_int) -> *const c_char {
    c"it is fake".as_ptr()
}

unsafe extern "C" fn create_handle(handle: *mut Handle) -> c_int {
    // SAFETY: the caller gives room for a pointer.
    unsafe { *handle = null_mut() };
    0
}

unsafe extern "C" fn destroy(_handle: Handle) -> c_int {
    0
}

unsafe extern "C" fn set_stream(_handle: Handle, _stream: Stream) -> c_int {
    0
}

/// Only counts: what it multiplies is tested with a real one.
unsafe extern "C" fn gemm_ex(
    _handle: Handle,
    _transpose_left: c_int,
    _transpose_right: c_int,
    _m: c_int,
    _n: c_int,
    _k: c_int,
    _alpha: *const c_void,
    _left: *const c_void,
    _left_type: c_int,
    _left_stride: c_int,
    _right: *const c_void,
    _right_type: c_int,
    _right_stride: c_int,
    _beta: *const c_void,
    _result: *mut c_void,
    _result_type: c_int,
    _result_stride: c_int,
    _compute: c_int,
    _algorithm: c_int,
) -> c_int {
    PRODUCTS.set(PRODUCTS.get() - 1);
    if PRODUCTS.get() < 0 { 13 } else { 0 }
}
