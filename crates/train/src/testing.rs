//! Temporary directories of unit tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory, removed on drop.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> Self {
        Self::create(&std::env::temp_dir()).unwrap()
    }

    /// In memory if possible, because syncing a real disk is slow.
    pub fn in_memory() -> Self {
        Self::create(Path::new("/dev/shm")).unwrap_or_else(|_| Self::new())
    }

    fn create(parent: &Path) -> std::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("regatta-train-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map(|()| Self(path))
    }

    /// Writes a file.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Creates a FIFO, which has no writer.
    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
        path
    }

    /// The names of its entries, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
