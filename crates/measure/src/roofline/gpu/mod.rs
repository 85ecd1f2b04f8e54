//! A GPU of this rank: memory, copies and GEMM. The vendor libraries are loaded at run time:
//! `regatta_comm::gpu_runtime` and `blas_sys` declare their functions, `device` and `blas` wrap them
//! safely.

mod blas;
mod blas_sys;
mod device;
#[cfg(test)]
pub(super) mod fake;

pub(super) use blas::{Blas, GemmType};
pub(super) use device::{GpuBuffer, RooflineGpu};

use regatta_comm::gpu_runtime::{LibraryError, Vendor};

use super::Cases;

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

/// Opens the first visible GPU of either vendor. Without a driver, the node has no GPU of a vendor.
pub(super) fn open() -> GpuResult<Option<RooflineGpu>> {
    let mut found = Ok(None);
    for vendor in Vendor::ALL {
        let why = match RooflineGpu::open(vendor, 0) {
            Ok(device) => return Ok(Some(device)),
            Err(error) => error.to_string(),
        };
        if vendor.has_kernel_driver() {
            found = Err(GpuError::new("CPU only", why));
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_gpu_driver_is_measured_without_a_note() {
        if !Vendor::ALL.into_iter().any(Vendor::has_kernel_driver) {
            assert!(matches!(open(), Ok(None)));
        }
    }
}
