//! Errors of swap files.

use std::path::PathBuf;

use thiserror::Error;

/// An I/O error of a swap file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OffloadError {
    /// The file cannot be created.
    #[error("{}: cannot create a swap file of {bytes} bytes: {why}; {hint}", file.display())]
    Create {
        /// The file.
        file: PathBuf,
        /// Its size.
        bytes: u64,
        /// The system's error.
        why: String,
        /// How to fix it.
        hint: &'static str,
    },
    /// A read or write failed.
    #[error("{}: cannot {operation} {bytes} bytes at offset {offset}: {why}; {hint}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Bytes of the operation.
        bytes: usize,
        /// Read or write.
        operation: &'static str,
        /// The system's error.
        why: String,
        /// How to fix it.
        hint: &'static str,
    },
}

/// How to fix an error of the system.
pub(super) fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "free disk space there, or set offload.dir to another directory"
        }
        _ => "set offload.dir to another directory",
    }
}
