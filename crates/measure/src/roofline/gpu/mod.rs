//! A GPU of this rank: memory, copies and GEMM. The vendor libraries are loaded at run time:
//! `regatta_comm::gpu::sys` and `blas_sys` declare their functions, `device` and `blas` wrap them
//! safely.

mod blas;
mod blas_sys;
mod device;
#[cfg(test)]
pub(super) mod fake;

pub(super) use blas::{Blas, GemmType};
pub(super) use device::{GpuBuffer, RooflineGpu};

use regatta_comm::gpu::sys::{LibraryError, Vendor};

use super::{Cases, GpuChoice};

/// A failure of a GPU or its library. It does not fail the measurement; it is noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(super) struct GpuError {
    pub what: String,
    pub why: String,
}

pub(super) type GpuResult<T = ()> = Result<T, GpuError>;

impl GpuError {
    fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into() }
    }
}

impl From<LibraryError> for GpuError {
    fn from(LibraryError { what, why, hint }: LibraryError) -> Self {
        Self { what, why: format!("{why}; {hint}") }
    }
}

/// Opens the GPU to measure, from either vendor.
pub(super) fn open(choice: GpuChoice) -> GpuResult<Option<RooflineGpu>> {
    let index = match choice {
        GpuChoice::None => return Ok(None),
        GpuChoice::First => 0,
        GpuChoice::Index(index) => index,
    };
    let why = match RooflineGpu::open(Vendor::Nvidia, index) {
        Ok(device) => return Ok(Some(device)),
        Err(error) => error,
    };
    let both = |error| GpuError::new("measuring the CPU only", format!("{why}, {error}"));
    RooflineGpu::open(Vendor::Amd, index).map(Some).map_err(both)
}

impl Cases<'_> {
    /// Unwraps a GPU result; an error becomes a note.
    pub(super) fn device<T>(&mut self, found: GpuResult<Option<T>>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.notes.push(error.to_string());
            None
        })
    }
}
