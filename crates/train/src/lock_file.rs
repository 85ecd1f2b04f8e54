//! Lock files: exclusive use of a folder by one process.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use regatta_comm::bootstrap::host_name;

use crate::regular_file;

/// Maximum size of a lock file.
const MAX_OWNER_BYTES: u64 = 4096;

/// Result of [`lock_file`].
#[derive(Debug)]
pub enum LockResult {
    /// Locked until the file is dropped.
    Locked(File),
    /// The file system does not support locks.
    Unsupported,
    /// Another process has the lock: `process 1234 on node7`.
    HeldBy(String),
}

/// Time before a second attempt: `regatta runs` holds a lock for microseconds to find out whether it is free.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Creates and locks a file, and writes this process into it.
pub fn lock_file(path: &Path) -> io::Result<LockResult> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let locked = file.try_lock().or_else(|error| match error {
        TryLockError::WouldBlock => {
            std::thread::sleep(RETRY_DELAY);
            file.try_lock()
        }
        error => Err(error),
    });
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Ok(LockResult::HeldBy(owner(path)));
        }
        Err(TryLockError::Error(_)) => return Ok(LockResult::Unsupported),
    }
    let text = format!("process {} on {}\n", std::process::id(), host_name());
    // The owner is only informative, so a failure to write it is ignored.
    let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    Ok(LockResult::Locked(file))
}

/// The process that locked a file last, `process 1234 on node7`; empty if unknown.
pub fn owner(path: &Path) -> String {
    let text = regular_file::read_to_string(path, MAX_OWNER_BYTES).unwrap_or_default();
    text.trim().to_owned()
}
