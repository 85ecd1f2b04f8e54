//! Device memory in host memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use regatta_comm::gpu_runtime::Stream;

use super::access_log::AccessLog;
use super::error::{INVALID_VALUE, OUT_OF_MEMORY, misuse};
use super::gpu::{FakeGpu, World, world};
use super::streams::operation;

/// As of `cudaMalloc`.
const ALIGNMENT: usize = 256;

/// NaN in every floating-point dtype, and an index out of bounds.
const POISON: u8 = 0xff;

/// Bytes of an allocation that are poisoned. Large allocations are workspaces, of which small tensors use
/// the first bytes.
const MAX_POISONED_BYTES: usize = 4 << 20;

/// Device memory, or pinned host memory.
pub struct Allocation {
    layout: Layout,
    bytes: usize,
    gpu: Arc<FakeGpu>,
    is_pinned: bool,
    accesses: AccessLog,
}

/// Allocates memory of a GPU, or pinned host memory.
pub fn allocate(gpu: &Arc<FakeGpu>, bytes: usize, is_pinned: bool) -> Result<*mut c_void, c_int> {
    let mut state = gpu.lock();
    let (used, limit) = match is_pinned {
        true => (state.pinned_bytes, gpu.config.pinned_bytes),
        false => (state.allocated_bytes, gpu.config.memory_bytes),
    };
    let total = used + bytes;
    if total > limit || bytes > state.max_allocation_bytes {
        return Err(OUT_OF_MEMORY);
    }
    let offset = offset_of(gpu, is_pinned);
    let size = bytes.max(1).checked_add(offset).ok_or(OUT_OF_MEMORY)?;
    let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the size is not 0.
    let aligned = unsafe { alloc_zeroed(layout) };
    if aligned.is_null() {
        return Err(OUT_OF_MEMORY);
    }
    let start = aligned.wrapping_add(offset);
    // SAFETY: the allocation has at least this many bytes.
    unsafe { start.write_bytes(POISON, bytes.min(MAX_POISONED_BYTES)) };
    if is_pinned {
        state.pinned_bytes = total;
        state.peak_pinned_bytes = state.peak_pinned_bytes.max(total);
    } else {
        state.allocated_bytes = total;
        state.peak_bytes = state.peak_bytes.max(total);
        state.device_allocations.push(bytes);
    }
    state.allocations += 1;
    drop(state);
    let (gpu, accesses) = (gpu.clone(), AccessLog::default());
    let allocation = Allocation { layout, bytes, gpu, is_pinned, accesses };
    world().allocations.insert(start as usize, allocation);
    Ok(start.cast())
}

/// Offset from an aligned address: pinned memory is aligned to a page.
fn offset_of(gpu: &FakeGpu, is_pinned: bool) -> usize {
    if is_pinned { 0 } else { gpu.config.offset_bytes }
}

/// The GPU that memory was allocated for.
pub fn gpu_of(start: *mut c_void) -> Option<Arc<FakeGpu>> {
    world().allocations.get(&(start as usize)).map(|allocation| allocation.gpu.clone())
}

/// Frees memory that was allocated and not freed since. All accesses must have happened before: before the
/// next operation of a stream, or for the host, which waits for none.
pub fn free(start: *mut c_void, stream: Option<Stream>, is_pinned: bool) -> Result<(), c_int> {
    let mut world = world();
    if let Some(stream) = stream {
        world.start_operation(stream)?;
    }
    let freed = world.allocations.remove(&(start as usize));
    let Some(allocation) = freed.filter(|allocation| allocation.is_pinned == is_pinned) else {
        return Err(INVALID_VALUE);
    };
    let happened = match stream {
        Some(stream) => allocation.accesses.happened_before(world.clock(stream)?),
        None => allocation.accesses.happened_before(&allocation.gpu.lock().host_clock),
    };
    if !happened {
        return Err(misuse(format!("{} bytes are freed while in use", allocation.bytes)));
    }
    drop(world);
    let Allocation { layout, bytes, gpu, .. } = allocation;
    let aligned = start.cast::<u8>().wrapping_sub(offset_of(&gpu, is_pinned));
    // SAFETY: it was allocated with this layout and is no longer in the table.
    unsafe { dealloc(aligned, layout) };
    let mut state = gpu.lock();
    state.allocations -= 1;
    match is_pinned {
        true => state.pinned_bytes -= bytes,
        false => state.allocated_bytes -= bytes,
    }
    Ok(())
}

/// Checks that a kernel may access some bytes: they are in one allocation of the GPU, and earlier accesses
/// happened before.
pub fn check_access(gpu: &FakeGpu, address: u64, bytes: usize) -> Result<(), String> {
    if bytes == 0 {
        return Ok(());
    }
    let mut world = world();
    let range = format!("{bytes} bytes at {address:#x}");
    let Some((start, allocation)) = find(&world.allocations, address) else {
        return Err(format!("{range} are not in device memory"));
    };
    if allocation.is_pinned || allocation.gpu.index != gpu.index {
        return Err(format!("{range} are not in the memory of device {}", gpu.index));
    }
    let available = start + allocation.bytes - address as usize;
    if bytes > available {
        return Err(format!("{range}: the allocation ends after {available} bytes"));
    }
    world.access(address, bytes)
}

/// Checks one side of a copy; whether it is in pinned memory. Addresses outside of allocations are in
/// pageable host memory.
pub fn check_copy(world: &mut World, address: *const c_void, bytes: usize) -> Result<bool, c_int> {
    let Some((start, allocation)) = find(&world.allocations, address as u64) else {
        return Ok(false);
    };
    if address as usize + bytes > start + allocation.bytes {
        return Err(misuse(format!("a copy of {bytes} bytes exceeds an allocation")));
    }
    let is_pinned = allocation.is_pinned;
    world.access(address as u64, bytes).map_err(misuse)?;
    Ok(is_pinned)
}

impl World {
    /// Notes that the current operation accesses bytes of an allocation, after all earlier accesses.
    fn access(&mut self, address: u64, bytes: usize) -> Result<(), String> {
        let stream = operation();
        let Self { streams, allocations, .. } = self;
        let Some(clock) = streams.get(&stream).map(|stream| &stream.clock) else {
            return Ok(());
        };
        let Some(start) = find(allocations, address).map(|(start, _)| start) else { return Ok(()) };
        let Some(allocation) = allocations.get_mut(&start) else { return Ok(()) };
        let first = address as usize - start;
        match allocation.accesses.add(first..first + bytes, stream, clock) {
            true => Ok(()),
            false => Err(format!("{bytes} bytes are accessed by two streams without an order")),
        }
    }
}

type Allocations = std::collections::BTreeMap<usize, Allocation>;

/// The allocation that contains an address.
fn find(allocations: &Allocations, address: u64) -> Option<(usize, &Allocation)> {
    let (start, allocation) = allocations.range(..=address as usize).next_back()?;
    (address as usize - start < allocation.bytes).then_some((*start, allocation))
}
