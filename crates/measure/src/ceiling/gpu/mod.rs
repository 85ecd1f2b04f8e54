//! A GPU of this rank: its memory, copies and matrix products. The vendors' libraries are opened at
//! run time, in three layers: `sys` is what they have, `device` and `blas` are safe.

mod blas;
mod device;
#[cfg(test)]
pub(super) mod fake;
mod sys;

pub(super) use blas::{Blas, Number};
pub(super) use device::{Device, Memory};

use regatta_comm::nccl::Vendor;

use super::{Cases, GpuChoice};

/// What a GPU or its library did not do. It is never the end of a measurement, only noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(super) struct GpuError {
    pub what: String,
    pub why: String,
}

/// Opens the GPU that is to be measured, of whatever vendor there is one.
pub(super) fn open(choice: GpuChoice) -> Result<Option<Device>, GpuError> {
    let number = match choice {
        GpuChoice::None => return Ok(None),
        GpuChoice::First => 0,
        GpuChoice::Number(number) => number,
    };
    let why = match Device::open(Vendor::Nvidia, number) {
        Ok(device) => return Ok(Some(device)),
        Err(error) => error,
    };
    match Device::open(Vendor::Amd, number) {
        Ok(device) => Ok(Some(device)),
        Err(error) => Err(GpuError {
            what: "only the CPU is measured".to_owned(),
            why: format!("{why}, {error}"),
        }),
    }
}

impl Cases<'_> {
    /// What is there of a GPU; what is not is noted.
    pub(super) fn device<T>(&mut self, found: Result<Option<T>, GpuError>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.notes.push(error.to_string());
            None
        })
    }
}
