//! Errors of a training step.

use regatta_comm::CommError;
use regatta_device::DeviceError;
use thiserror::Error;

use crate::offload::OffloadError;

/// A result of a step.
pub type Result<T, E = StepError> = std::result::Result<T, E>;

/// Why a step failed or state cannot be accessed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StepError {
    /// Communication failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Offloaded state cannot be read or written.
    #[error(transparent)]
    Offload(OffloadError),
}

impl From<OffloadError> for StepError {
    fn from(error: OffloadError) -> Self {
        match error {
            OffloadError::Device(error) => Self::Device(error),
            OffloadError::Wait(error) => Self::Comm(error),
            error => Self::Offload(error),
        }
    }
}
