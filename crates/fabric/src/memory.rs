//! Memory that is registered with a provider: of the host or of a GPU.

use std::ffi::{c_int, c_void};

use crate::abi::Mr;

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the host.
    Host,
    /// Memory of an NVIDIA GPU, by the number of the CUDA driver.
    Cuda(c_int),
    /// Memory of an AMD GPU.
    Rocr,
}

/// A dma-buf descriptor that memory of a GPU is part of.
#[derive(Debug, Clone, Copy)]
pub struct DmaBuf {
    /// The descriptor.
    pub fd: c_int,
    /// Offset of the memory in it.
    pub offset: u64,
}

/// Memory to be registered.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// First byte.
    pub start: *mut u8,
    /// Bytes.
    pub length: usize,
    /// Where it is.
    pub kind: MemoryKind,
    /// If it is registered by a descriptor.
    pub dma_buf: Option<DmaBuf>,
}

impl Memory {
    /// Memory of the host.
    pub fn host(start: *mut u8, length: usize) -> Self {
        Self { start, length, kind: MemoryKind::Host, dma_buf: None }
    }
}

/// A registration of memory. NULL if the provider needs none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region(pub(crate) *mut Mr);

// SAFETY: regions may be used from any thread.
unsafe impl Send for Region {}

impl Region {
    /// No registration.
    pub const NONE: Self = Self(std::ptr::null_mut());

    /// The descriptor for operations.
    pub fn descriptor(self) -> *mut c_void {
        // SAFETY: a region that is not null is open.
        unsafe { self.0.as_ref() }.map_or(std::ptr::null_mut(), |region| region.mem_desc)
    }

    /// The key for remote access.
    pub fn key(self) -> u64 {
        // SAFETY: a region that is not null is open.
        unsafe { self.0.as_ref() }.map_or(0, |region| region.key)
    }
}
