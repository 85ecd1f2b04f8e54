//! The functions of the runtime. All work but copies of pinned memory completes before a call returns.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{
    EVENT_DISABLE_TIMING, RawEvent, Runtime, SUCCESS, Stream, StreamOrderedAllocator, Vendor,
    error_text,
};

use super::error::{INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, get_error_string, misuse};
use super::gpu::{Event, FakeGpu, current, current_index, set_current_index, world};
use super::streams::FakeStream;
use super::{graph, memory, name};

/// The runtime of the fake GPUs of a vendor.
pub fn runtime(vendor: Vendor) -> Runtime {
    Runtime {
        vendor,
        get_device_count,
        get_device,
        set_device,
        get_device_properties,
        device_get_pci_bus_id,
        mem_get_info,
        malloc,
        free,
        stream_ordered: Some(StreamOrderedAllocator { malloc: malloc_async, free: free_async }),
        host_alloc,
        free_host,
        memcpy_async,
        device_get_stream_priority_range,
        stream_create_with_priority,
        stream_destroy,
        stream_synchronize,
        stream_query: stream_synchronize,
        stream_wait_event,
        stream_is_capturing,
        thread_exchange_stream_capture_mode,
        graphs: Some(graph::FUNCTIONS),
        event_create_with_flags,
        event_record,
        event_query,
        event_elapsed_time,
        event_destroy,
        get_error_string,
        library: None,
    }
}

/// The code of a result.
pub fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(SUCCESS)
}

/// The GPU of a stream, which need not be the current device: only launches depend on that.
fn gpu_of(stream: Stream) -> Result<Arc<FakeGpu>, c_int> {
    let gpu = world().stream(stream)?;
    gpu.check().map(|()| gpu)
}

/// Writes a successful result.
///
/// # Safety
/// `to` must be valid.
pub unsafe fn write<T>(to: *mut T, result: Result<T, c_int>) -> c_int {
    // SAFETY: as required of the caller.
    code(result.map(|value| unsafe { to.write(value) }))
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer, as in all functions below.
    unsafe { write(count, Ok(world().gpus.len() as c_int + 1)) }
}

unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { write(device, Ok(current_index())) }
}

unsafe extern "C" fn set_device(index: c_int) -> c_int {
    // 0 is the default of a thread, which guards restore.
    if index != 0 && !world().gpus.contains_key(&index) {
        return INVALID_DEVICE;
    }
    set_current_index(index);
    SUCCESS
}

/// Where the architecture is in the properties; the position differs between versions of HIP.
const ARCH_OFFSET: usize = 1160;

unsafe extern "C" fn get_device_properties(to: *mut c_void, index: c_int) -> c_int {
    let Some(gpu) = world().gpus.get(&index).cloned() else { return INVALID_DEVICE };
    let write = |offset: usize, text: &[u8]| {
        // SAFETY: the caller's buffer is larger.
        unsafe { to.cast::<u8>().add(offset).copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    };
    write(0, name(gpu.config.vendor).to_bytes_with_nul());
    if gpu.config.vendor == Vendor::Amd {
        write(ARCH_OFFSET, format!("{}:sramecc+:xnack-\0", gpu.config.arch).as_bytes());
    }
    SUCCESS
}

unsafe extern "C" fn device_get_pci_bus_id(_: *mut c_char, _: c_int, _: c_int) -> c_int {
    INVALID_VALUE
}

unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> c_int {
    let info = current().map(|gpu| {
        let total = gpu.config.memory_bytes;
        (total - gpu.lock().allocated_bytes, total)
    });
    // SAFETY: as above.
    unsafe { write(free, info.map(|info| info.0)).max(write(total, info.map(|info| info.1))) }
}

unsafe extern "C" fn malloc(start: *mut *mut c_void, bytes: usize) -> c_int {
    let allocate = || {
        let gpu = current()?;
        gpu.check()?;
        memory::allocate(&gpu, bytes, false)
    };
    // SAFETY: as above.
    unsafe { write(start, allocate()) }
}

/// Waits for all work of the device, as the runtime does.
unsafe extern "C" fn free(start: *mut c_void) -> c_int {
    if let Some(gpu) = memory::gpu_of(start) {
        world().wait_for_all(&gpu);
    }
    reported(memory::free(start, None, false))
}

unsafe extern "C" fn malloc_async(start: *mut *mut c_void, bytes: usize, on: Stream) -> c_int {
    let allocate = || memory::allocate(&uncaptured(gpu_of(on)?)?, bytes, false);
    // SAFETY: as above.
    unsafe { write(start, allocate()) }
}

/// A GPU without a capture: memory that a graph allocates or frees is not emulated.
fn uncaptured(gpu: Arc<FakeGpu>) -> Result<Arc<FakeGpu>, c_int> {
    match gpu.lock().is_capturing {
        true => Err(misuse("memory is allocated or freed in a capture")),
        false => Ok(gpu.clone()),
    }
}

unsafe extern "C" fn free_async(start: *mut c_void, stream: Stream) -> c_int {
    let gpu = world().stream(stream).and_then(uncaptured);
    reported(memory::free(start, Some(stream), false).and(gpu.map(drop)))
}

unsafe extern "C" fn host_alloc(start: *mut *mut c_void, bytes: usize, _: c_uint) -> c_int {
    // SAFETY: as above.
    unsafe { write(start, current().and_then(|gpu| memory::allocate(&gpu, bytes, true))) }
}

unsafe extern "C" fn free_host(start: *mut c_void) -> c_int {
    reported(memory::free(start, None, true))
}

/// Callers ignore errors of a free, so such an error ends the process.
fn reported(result: Result<(), c_int>) -> c_int {
    if let Err(code) = result {
        // SAFETY: the text is a C string, valid until the next misuse of this thread.
        let cause = unsafe { error_text(get_error_string(code), code) };
        let text = format!("the fake GPU got an invalid free: {cause}\n");
        // Tests capture the output of `eprintln`.
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    }
    SUCCESS
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _: c_int,
    stream: Stream,
) -> c_int {
    let (from, to, handle) = (from as usize, to as usize, stream as usize);
    let copy = move || {
        let (from, to, stream) = (from as *const c_void, to as *mut c_void, handle as Stream);
        let mut world = world();
        world.queue_operation(stream)?;
        let from_pinned = memory::check_copy(&mut world, from, bytes)?;
        let to_pinned = memory::check_copy(&mut world, to, bytes)?;
        world.defer_copy(stream, to, from, bytes)?;
        // Pageable memory is read and written before the call returns.
        if !from_pinned && !to_pinned {
            world.run_all(stream);
        }
        Ok(())
    };
    code(gpu_of(stream).and_then(|gpu| gpu.submit(copy)))
}

unsafe extern "C" fn device_get_stream_priority_range(low: *mut c_int, high: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { write(low, Ok(0)).max(write(high, Ok(-5))) }
}

unsafe extern "C" fn stream_create_with_priority(to: *mut Stream, _: c_uint, _: c_int) -> c_int {
    let create = |gpu| {
        let mut world = world();
        let handle = world.new_handle();
        world.streams.insert(handle, FakeStream::new(gpu));
        handle as Stream
    };
    // SAFETY: as above.
    unsafe { write(to, current().map(create)) }
}

unsafe extern "C" fn stream_destroy(stream: Stream) -> c_int {
    code(world().remove_stream(stream))
}

unsafe extern "C" fn stream_synchronize(stream: Stream) -> c_int {
    let gpu = world().stream(stream);
    code(gpu.and_then(|gpu| {
        if gpu.lock().is_capturing {
            return Err(misuse("a stream that is captured cannot be waited for"));
        }
        let mut world = world();
        let point = world.record(stream)?;
        world.wait_on_host(&gpu, &point);
        gpu.synchronize()
    }))
}

unsafe extern "C" fn stream_wait_event(stream: Stream, event: RawEvent, _: c_uint) -> c_int {
    let mut world = world();
    let point = world.event(event).map(|event| event.point.clone());
    code(world.stream(stream).and(point).and_then(|point| match point {
        Some(point) => world.wait_on_stream(stream, &point),
        // As of the runtime: an event without a record is complete.
        None => Ok(()),
    }))
}

unsafe extern "C" fn stream_is_capturing(stream: Stream, status: *mut c_int) -> c_int {
    let gpu = world().stream(stream);
    // SAFETY: as above.
    unsafe { write(status, gpu.map(|gpu| c_int::from(gpu.lock().is_capturing))) }
}

unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut c_int) -> c_int {
    thread_local! {
        static MODE: Cell<c_int> = const { Cell::new(0) };
    }
    // SAFETY: as above.
    unsafe { *mode = MODE.replace(*mode) };
    SUCCESS
}

unsafe extern "C" fn event_create_with_flags(event: *mut RawEvent, flags: c_uint) -> c_int {
    let create = || {
        let gpu = current()?;
        gpu.check()?;
        gpu.lock().events += 1;
        let mut world = world();
        let handle = world.new_handle();
        let has_timing = flags & EVENT_DISABLE_TIMING == 0;
        world.events.insert(handle, Event { gpu, has_timing, recorded_ms: None, point: None });
        Ok(handle as RawEvent)
    };
    // SAFETY: as above.
    unsafe { write(event, create()) }
}

unsafe extern "C" fn event_record(event: RawEvent, stream: Stream) -> c_int {
    let record = || {
        let gpu = gpu_of(stream)?;
        let now = gpu.lock().clock_ms;
        let mut world = world();
        let point = world.record(stream)?;
        let event = world.event(event).ok().filter(|event| event.gpu.index == gpu.index);
        let event = event.ok_or(INVALID_HANDLE)?;
        (event.recorded_ms, event.point) = (Some(now), Some(point));
        Ok(())
    };
    code(record())
}

unsafe extern "C" fn event_query(event: RawEvent) -> c_int {
    let mut world = world();
    let found = world.event(event).map(|event| (event.gpu.clone(), event.point.clone()));
    code(found.and_then(|(gpu, point)| {
        point.iter().for_each(|point| world.wait_on_host(&gpu, point));
        gpu.synchronize()
    }))
}

unsafe extern "C" fn event_elapsed_time(ms: *mut f32, start: RawEvent, end: RawEvent) -> c_int {
    let elapsed = || {
        let mut world = world();
        let mut time = |event| match world.event(event)? {
            Event { has_timing: true, recorded_ms: Some(time), .. } => Ok(*time),
            _ => Err(INVALID_HANDLE),
        };
        Ok(time(end)? - time(start)?)
    };
    // SAFETY: as above.
    unsafe { write(ms, elapsed()) }
}

unsafe extern "C" fn event_destroy(event: RawEvent) -> c_int {
    let destroyed = world().events.remove(&(event as usize));
    code(destroyed.ok_or(INVALID_HANDLE).map(|event| event.gpu.lock().events -= 1))
}
