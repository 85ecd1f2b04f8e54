//! File operations of checkpoints, behind a trait for fault injection in tests.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::manifest::MAX_MANIFEST_BYTES;
use crate::regular_file;

/// A file system.
pub trait Disk: Send + Sync {
    /// Creates a directory and its parents; existing ones are fine.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates or truncates a file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Reads a regular file of limited size.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Names in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Renames a file or directory atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and its contents.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Syncs a directory.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Free bytes, if known.
    fn free_bytes(&self, path: &Path) -> Option<u64>;
}

/// A file open for writing.
pub trait Output {
    /// Writes all bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Syncs the file.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        regular_file::read(path, MAX_MANIFEST_BYTES)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        // Names that are not UTF-8 are not ours.
        names.filter_map(Result::transpose).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // Some network file systems do not support it, and preserve the order without it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        let found = rustix::fs::statvfs(path).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl Output for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
