//! Locks of running runs: the launcher's on `events.jsonl`, rank 0's on `train.lock`, and that of a
//! sweep or scan. The kernel releases them when the process ends, however it ends.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::open_regular;

/// State of a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// No process has it.
    Free,
    /// A process has it.
    Held,
    /// The file system does not support locks.
    Unsupported,
}

/// Whether a process has locked a file. A file that cannot be opened is free.
pub fn state(path: &Path) -> LockState {
    let Ok(Some(file)) = open_regular(path) else { return LockState::Free };
    match file.try_lock_shared() {
        Ok(()) => LockState::Free,
        Err(TryLockError::WouldBlock) => LockState::Held,
        Err(TryLockError::Error(_)) => LockState::Unsupported,
    }
}

/// Locks all files until the result is dropped. None if another process has locked one.
pub fn lock_all(paths: &[impl AsRef<Path>]) -> Option<Vec<File>> {
    let files: Vec<File> =
        paths.iter().filter_map(|path| open_regular(path.as_ref()).ok().flatten()).collect();
    let is_held = |file: &File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    (!files.iter().any(is_held)).then_some(files)
}
