//! Errors of a training step.

use std::io;
use std::path::{Path, PathBuf};

use regatta_comm::CommError;
use regatta_device::DeviceError;
use thiserror::Error;

/// A result of a step.
pub type Result<T, E = StepError> = std::result::Result<T, E>;

/// Why a step failed or state cannot be accessed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum StepError {
    /// Communication failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A swap file of offloaded state cannot be created, read or written.
    #[error("{}: cannot {action}: {why}; {hint}", file.display())]
    Offload { file: PathBuf, action: String, why: String, hint: &'static str },
}

impl StepError {
    /// An error of the system at a swap file, with its fix.
    pub(crate) fn offload(file: &Path, action: String, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free disk space there, or set offload.dir to another directory"
            }
            io::ErrorKind::FileTooLarge => "raise the file size limit with `ulimit -f unlimited`",
            _ => "set offload.dir to another directory",
        };
        Self::Offload { file: file.to_owned(), action, why: error.to_string(), hint }
    }
}
