//! Why state on disk cannot be used.

use std::path::PathBuf;

use thiserror::Error;

/// Why state on disk cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The file cannot be made.
    #[error("{}: cannot be made with {bytes} bytes: {why}; {hint}", file.display())]
    Make {
        /// Which.
        file: PathBuf,
        /// How long it should be.
        bytes: u64,
        /// Why not.
        why: String,
        /// What to do.
        hint: &'static str,
    },
    /// The file cannot be read or written any more.
    #[error("{}: {bytes} bytes from byte {at} on cannot be {what}: {why}; {hint}", file.display())]
    Use {
        /// Which.
        file: PathBuf,
        /// Where.
        at: u64,
        /// How many.
        bytes: usize,
        /// Read or written.
        what: &'static str,
        /// Why not.
        why: String,
        /// What to do.
        hint: &'static str,
    },
}

/// What to do about an error of the system.
pub(super) fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "make room there, or name another place by offload.folder"
        }
        _ => "name another place by offload.folder",
    }
}
