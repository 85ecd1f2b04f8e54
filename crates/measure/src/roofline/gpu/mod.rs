//! A GPU of this rank: memory, copies and GEMM. The vendor libraries are loaded at run time:
//! `regatta_comm::gpu_runtime` and `blas_sys` declare their functions, `device` and `blas` wrap them
//! safely.

mod blas;
mod blas_sys;
mod device;
#[cfg(test)]
pub(super) mod fake;

pub(super) use blas::{Blas, GemmType};
pub(super) use device::{GpuBuffer, GpuDevice};

use regatta_comm::gpu_runtime::{LibraryError, Vendor};

use super::{Cases, GpuChoice};

/// A failure of a GPU or its library. It does not fail the measurement; it is noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(super) struct GpuError {
    pub what: String,
    pub why: String,
}

impl From<LibraryError> for GpuError {
    fn from(LibraryError { what, why, hint }: LibraryError) -> Self {
        Self { what, why: format!("{why}; {hint}") }
    }
}

/// Opens the GPU to measure, from either vendor.
pub(super) fn open(choice: GpuChoice) -> Result<Option<GpuDevice>, GpuError> {
    let index = match choice {
        GpuChoice::None => return Ok(None),
        GpuChoice::First => 0,
        GpuChoice::Index(index) => index,
    };
    let why = match GpuDevice::open(Vendor::Nvidia, index) {
        Ok(device) => return Ok(Some(device)),
        Err(error) => error,
    };
    match GpuDevice::open(Vendor::Amd, index) {
        Ok(device) => Ok(Some(device)),
        Err(error) => Err(GpuError {
            what: "measuring the CPU only".to_owned(),
            why: format!("{why}, {error}"),
        }),
    }
}

impl Cases<'_> {
    /// Unwraps a GPU result; an error becomes a note.
    pub(super) fn device<T>(&mut self, found: Result<Option<T>, GpuError>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.notes.push(error.to_string());
            None
        })
    }
}
