//! Buffers on a device, for calls that are done there.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Device, DeviceMemory};
use super::sys::{Functions, Vendor};
use crate::CommError;
use crate::buffer::{Buffer, Reach};

/// A device of which this process has buffers. Communicators use those of their own device.
#[derive(Clone)]
pub struct Gpu {
    device: Arc<Device>,
}

impl Gpu {
    /// Opens a device, as the runtime counts those that it sees.
    pub fn open(vendor: Vendor, number: u32) -> Result<Self, CommError> {
        Self::with(Arc::new(Functions::open(vendor)?), number)
    }

    pub(super) fn with(functions: Arc<Functions>, number: u32) -> Result<Self, CommError> {
        Ok(Self { device: Arc::new(Device::open(functions, number)?) })
    }

    /// How many bytes of its memory nobody has.
    pub fn free_bytes(&self) -> Result<u64, CommError> {
        let _selected = self.device.select()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two numbers.
        let code = unsafe { (self.device.functions.memory_info)(&mut free, &mut total) };
        self.device.check("the memory of a device", code)?;
        Ok(free as u64)
    }

    /// Memory on it. What is in it is not known before it is written.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, CommError> {
        let memory = self.device.memory(bytes)?;
        let start = NonNull::new(memory.start.cast()).unwrap_or(NonNull::dangling());
        let owner = Owner::Own { _memory: memory };
        // SAFETY: it is memory of this device, which the owner frees.
        Ok(unsafe { self.adopted(start, bytes, owner) })
    }

    /// Memory on it that is somebody else's, who frees it when `owner` is dropped: a tensor of
    /// another library, say, that `owner` keeps alive.
    ///
    /// Collectives work on a stream of their own. What was queued elsewhere to write the memory must
    /// be over before a call gets the buffer, and nothing may be queued that touches it until the
    /// call was waited for.
    ///
    /// # Safety
    /// `start` must be the address of `bytes` bytes of this device's memory, or of memory that it
    /// reaches, valid until `owner` is dropped, and used as said above.
    pub unsafe fn adopt(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        // SAFETY: as the caller says.
        unsafe { self.adopted(start, bytes, Owner::Somebody { _frees: owner }) }
    }

    /// # Safety
    /// As for [`Gpu::adopt`].
    unsafe fn adopted(&self, start: NonNull<u8>, bytes: usize, owner: Owner) -> Buffer {
        let reach = OnGpu { device: self.device.clone(), _owner: owner };
        // SAFETY: as the caller says.
        unsafe { Buffer::on_device(start, bytes, Box::new(reach)) }
    }
}

/// Who frees the memory.
enum Owner {
    Own { _memory: DeviceMemory },
    Somebody { _frees: Box<dyn Any + Send + Sync> },
}

/// How a buffer is reached.
struct OnGpu {
    device: Arc<Device>,
    _owner: Owner,
}

impl Reach for OnGpu {
    fn device(&self) -> u32 {
        self.device.number()
    }

    unsafe fn put(&self, to: *mut u8, from: &[u8]) -> Result<(), CommError> {
        self.device.put(to.cast(), from)?;
        self.device.wait()
    }

    unsafe fn fetch(&self, to: &mut [u8], from: *const u8) -> Result<(), CommError> {
        self.device.fetch(to, from.cast())?;
        self.device.wait()
    }
}
