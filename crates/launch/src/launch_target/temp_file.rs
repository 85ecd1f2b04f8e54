//! A file that is removed on drop.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::error::{LaunchError, Result};

/// A file that is removed on drop.
pub(super) struct TempFile(pub(super) PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl TempFile {
    /// Creates a file that only this user can read.
    pub(super) fn create(path: PathBuf, text: &str) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(LaunchError::io(path.display()))?;
        Ok(Self(path))
    }
}
