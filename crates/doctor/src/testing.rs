//! Recorded trees in temporary directories, for tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_discover::Sysroot;

/// A temporary directory, removed on drop.
pub(crate) struct TempTree {
    pub(crate) base: PathBuf,
}

impl TempTree {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("regatta-doctor-{}-{id}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir_all(&base).unwrap();
        Self { base }
    }

    pub(crate) fn root(&self) -> Sysroot {
        Sysroot::at(&self.base)
    }

    /// Writes a file and its parent directories.
    pub(crate) fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes a symbolic link and its parent directories.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.root().path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }
}

impl Drop for TempTree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}
