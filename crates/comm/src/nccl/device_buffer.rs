//! Buffers in device memory.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::GpuDevice;
use super::gpu_event::GpuEvent;
use crate::buffer::{Buffer, DeviceCopy};
use crate::gpu_runtime::{Runtime, Stream, Vendor};
use crate::{Event, Result};

/// A device on which this process allocates buffers. Communicators accept buffers of their own
/// device.
#[derive(Clone)]
pub struct Gpu {
    device: Arc<GpuDevice>,
}

impl Gpu {
    /// Opens a device by its index among those visible to the runtime.
    pub fn open(vendor: Vendor, index: u32) -> Result<Self> {
        Self::with_runtime(Arc::new(Runtime::open(vendor)?), index)
    }

    /// Opens a device of a runtime that is loaded already.
    pub fn with_runtime(runtime: Arc<Runtime>, index: u32) -> Result<Self> {
        Ok(Self { device: Arc::new(GpuDevice::open(runtime, index)?) })
    }

    pub(super) fn runtime(&self) -> Arc<Runtime> {
        self.device.runtime.clone()
    }

    /// Records the completion of the work that is now on a stream of the caller. Calls may depend on
    /// it ([`Comm::enqueue`](crate::Comm::enqueue)).
    ///
    /// # Safety
    /// `stream` must be a valid stream of this device.
    pub unsafe fn record(&self, stream: Stream) -> Result<Event> {
        let _guard = self.device.make_current()?;
        // SAFETY: as required of the caller.
        let event = unsafe { GpuEvent::record(&self.device, stream) }?;
        Ok(Event::new(Arc::new(event)))
    }

    /// Free memory on the device.
    pub fn free_bytes(&self) -> Result<u64> {
        self.free_and_total_bytes().map(|(free, _)| free)
    }

    /// Free and total memory of the device.
    pub fn free_and_total_bytes(&self) -> Result<(u64, u64)> {
        let _guard = self.device.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two integers.
        let code = unsafe { (self.device.runtime.mem_get_info)(&mut free, &mut total) };
        self.device.check("querying device memory", code)?;
        Ok((free as u64, total as u64))
    }

    /// Allocates device memory, uninitialised.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.buffer_on(&self.device, bytes)?;
        // Other streams use it, too.
        self.device.synchronize()?;
        Ok(buffer)
    }

    /// Allocates and frees device memory in the order of a stream, on which it must be used.
    pub(super) fn buffer_on(&self, stream: &Arc<GpuDevice>, bytes: usize) -> Result<Buffer> {
        let memory = stream.alloc(bytes)?;
        let start = NonNull::new(memory.start.cast()).unwrap_or(NonNull::dangling());
        // SAFETY: it is memory of this device, which the owner frees.
        Ok(unsafe { self.adopt(start, bytes, Box::new(memory)) })
    }

    /// Wraps device memory of another library, which frees it when `owner` is dropped: a tensor
    /// that `owner` keeps alive, for example.
    ///
    /// Collectives run on their own stream. A call must run after the events of earlier work on other
    /// streams that writes the memory, and other work may touch it only after the event of the call.
    ///
    /// # Safety
    /// `start` must be the address of `bytes` bytes that this device can access, valid until
    /// `owner` is dropped, and used as described above.
    pub unsafe fn adopt(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        let memory = GpuMemory { device: self.device.clone(), _owner: owner };
        // SAFETY: as required of the caller.
        unsafe { Buffer::on_device(start, bytes, Arc::new(memory)) }
    }
}

/// Device memory of a buffer.
struct GpuMemory {
    device: Arc<GpuDevice>,
    /// Keeps the memory valid.
    _owner: Box<dyn Any + Send + Sync>,
}

impl DeviceCopy for GpuMemory {
    fn device(&self) -> u32 {
        self.device.index()
    }

    unsafe fn copy_from_host(&self, to: *mut u8, from: &[u8]) -> Result {
        self.device.copy_from_host(to.cast(), from)?;
        self.device.synchronize()
    }

    unsafe fn copy_to_host(&self, to: &mut [u8], from: *const u8) -> Result {
        self.device.copy_to_host(to, from.cast())?;
        self.device.synchronize()
    }
}
