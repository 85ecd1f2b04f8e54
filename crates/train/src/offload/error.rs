//! Errors of offloaded state.

use std::path::PathBuf;

use regatta_comm::CommError;
use regatta_device::DeviceError;
use thiserror::Error;

/// A result about offloaded state.
pub type Result<T, E = OffloadError> = std::result::Result<T, E>;

/// Why offloaded state cannot be accessed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum OffloadError {
    /// The file cannot be created.
    #[error("{}: cannot create a swap file of {bytes} bytes: {why}; {hint}", file.display())]
    Create { file: PathBuf, bytes: u64, why: String, hint: &'static str },
    /// A read or write failed.
    #[error("{}: cannot {operation} {bytes} bytes at offset {offset}: {why}; {hint}", file.display())]
    Io {
        file: PathBuf,
        offset: u64,
        bytes: usize,
        operation: &'static str,
        why: String,
        hint: &'static str,
    },
    /// Pinned memory cannot be allocated, or a copy failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device cannot wait for a copy.
    #[error(transparent)]
    Wait(#[from] CommError),
}

/// How to fix an error of the system.
pub(super) fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "free disk space there, or set offload.dir to another directory"
        }
        std::io::ErrorKind::FileTooLarge => "raise the file size limit with `ulimit -f unlimited`",
        _ => "set offload.dir to another directory",
    }
}
