//! The file operations that a checkpoint is made of, behind a trait so that tests can make any of
//! them fail, or be the last one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What a checkpoint asks of a file system.
pub trait Disk: Send + Sync {
    /// Makes a folder and those above it; one that exists is fine.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes a file, or empties it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Names of what is in a folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Gives a file or folder another name, at once.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with all that is in it.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder survive a loss of power.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Bytes that can still be written there, if the system says.
    fn free(&self, path: &Path) -> Option<u64>;
}

/// A file that is being written.
pub trait Output {
    /// Writes all of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written survive a loss of power.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real one.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Disk for System {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        // A name that is no text is none of ours.
        names.filter_map(Result::transpose).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // Some network file systems cannot, and keep the order by themselves.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }

    fn free(&self, path: &Path) -> Option<u64> {
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
