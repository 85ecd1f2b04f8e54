//! The functions of the runtime.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::{Operation, simulation};
use crate::gpu_runtime::{
    NOT_READY, RawEvent, Runtime, SUCCESS, Stream, StreamOrderedAllocator, Vendor,
};

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// The functions of the simulated runtime.
pub fn runtime() -> Runtime {
    Runtime {
        vendor: Vendor::Nvidia,
        get_device_count: write_one,
        get_device,
        set_device,
        get_device_properties,
        device_get_pci_bus_id,
        mem_get_info,
        malloc,
        free,
        stream_ordered: Some(StreamOrderedAllocator { malloc: malloc_async, free: free_async }),
        host_alloc,
        free_host: free,
        memcpy_async,
        device_get_stream_priority_range,
        stream_create_with_priority,
        stream_destroy: ignore,
        stream_synchronize,
        stream_query,
        stream_wait_event,
        stream_is_capturing,
        thread_exchange_stream_capture_mode: write_one,
        graphs: None,
        event_create_with_flags,
        event_record,
        event_query,
        event_elapsed_time,
        event_destroy: ignore,
        get_error_string,
        library: None,
    }
}

/// A stream of the caller.
pub fn new_stream() -> Stream {
    let mut stream = null_mut();
    // SAFETY: the function writes one pointer.
    unsafe { stream_create_with_priority(&mut stream, 0, 0) };
    stream
}

unsafe extern "C" fn write_one(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer, here and below.
    unsafe { *count = 1 };
    SUCCESS
}

unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *device = CURRENT.get() };
    SUCCESS
}

unsafe extern "C" fn set_device(device: c_int) -> c_int {
    CURRENT.set(device);
    SUCCESS
}

unsafe extern "C" fn get_device_properties(_: *mut c_void, _: c_int) -> c_int {
    SUCCESS
}

unsafe extern "C" fn device_get_pci_bus_id(_: *mut c_char, _: c_int, _: c_int) -> c_int {
    SUCCESS
}

unsafe extern "C" fn mem_get_info(_: *mut usize, _: *mut usize) -> c_int {
    SUCCESS
}

unsafe extern "C" fn malloc(start: *mut *mut c_void, bytes: usize) -> c_int {
    let mut memory = vec![0; bytes].into_boxed_slice();
    let address = memory.as_mut_ptr();
    simulation().memory.insert(address as usize, memory);
    // SAFETY: as above.
    unsafe { *start = address.cast() };
    SUCCESS
}

unsafe extern "C" fn free(start: *mut c_void) -> c_int {
    simulation().memory.remove(&(start as usize));
    SUCCESS
}

unsafe extern "C" fn malloc_async(start: *mut *mut c_void, bytes: usize, _: Stream) -> c_int {
    // SAFETY: as above.
    unsafe { malloc(start, bytes) }
}

unsafe extern "C" fn free_async(start: *mut c_void, stream: Stream) -> c_int {
    simulation().push(stream as usize, Operation::Free(start as usize));
    SUCCESS
}

unsafe extern "C" fn host_alloc(start: *mut *mut c_void, bytes: usize, _: c_uint) -> c_int {
    // SAFETY: as above.
    unsafe { malloc(start, bytes) }
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _: c_int,
    stream: Stream,
) -> c_int {
    let copy = Operation::Copy { to: to as usize, from: from as usize, bytes };
    simulation().push(stream as usize, copy);
    SUCCESS
}

unsafe extern "C" fn device_get_stream_priority_range(_: *mut c_int, _: *mut c_int) -> c_int {
    SUCCESS
}

unsafe extern "C" fn stream_create_with_priority(
    stream: *mut Stream,
    _: c_uint,
    _: c_int,
) -> c_int {
    let mut simulation = simulation();
    let handle = simulation.new_handle();
    simulation.streams.insert(handle, Default::default());
    // SAFETY: as above.
    unsafe { *stream = handle as Stream };
    SUCCESS
}

unsafe extern "C" fn ignore(_: *mut c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn stream_synchronize(stream: Stream) -> c_int {
    // SAFETY: the function takes any handle.
    while unsafe { stream_query(stream) } == NOT_READY {
        std::thread::yield_now();
    }
    SUCCESS
}

unsafe extern "C" fn stream_query(stream: Stream) -> c_int {
    if super::is_idle(stream) { SUCCESS } else { NOT_READY }
}

unsafe extern "C" fn stream_wait_event(stream: Stream, event: RawEvent, _: c_uint) -> c_int {
    let mut simulation = simulation();
    let event = event as usize;
    let number = simulation.events.get(&event).map_or(0, |event| event.issued);
    simulation.push(stream as usize, Operation::Wait { event, number });
    SUCCESS
}

unsafe extern "C" fn stream_is_capturing(_: Stream, _: *mut c_int) -> c_int {
    SUCCESS
}

unsafe extern "C" fn event_create_with_flags(event: *mut RawEvent, _: c_uint) -> c_int {
    let handle = simulation().new_handle();
    // SAFETY: as above.
    unsafe { *event = handle as RawEvent };
    SUCCESS
}

unsafe extern "C" fn event_record(event: RawEvent, stream: Stream) -> c_int {
    let mut simulation = simulation();
    let event = event as usize;
    let recorded = simulation.events.entry(event).or_default();
    recorded.issued += 1;
    let number = recorded.issued;
    recorded.pending.insert(number);
    simulation.push(stream as usize, Operation::Record { event, number });
    SUCCESS
}

unsafe extern "C" fn event_query(event: RawEvent) -> c_int {
    let mut simulation = simulation();
    simulation.progress();
    let complete = |event: &super::Recorded| !event.pending.contains(&event.issued);
    match simulation.events.get(&(event as usize)).is_none_or(complete) {
        true => SUCCESS,
        false => NOT_READY,
    }
}

unsafe extern "C" fn event_elapsed_time(_: *mut f32, _: RawEvent, _: RawEvent) -> c_int {
    SUCCESS
}

unsafe extern "C" fn get_error_string(_: c_int) -> *const c_char {
    c"simulated error".as_ptr()
}
