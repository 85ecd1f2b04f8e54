//! A cluster's own folder, and what killed tests left of theirs.
//!
//! The folder holds a locked file for as long as its cluster lives: a lock, unlike a process
//! number, is never reused.

use crate::cgroup;
use crate::error::{TestbedError, io};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "regatta-testbed-";
const LOCK: &str = "pid";

/// The folder of one cluster; it goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) path: PathBuf,
    /// What tells this cluster from every other one of the machine.
    pub(crate) name: String,
    _lock: File,
}

impl Base {
    /// Makes a new folder below the system's temporary one.
    pub(crate) fn create() -> Result<Self, TestbedError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}", std::process::id());
        let temp =
            fs::canonicalize(std::env::temp_dir()).map_err(io("find", "the temporary folder"))?;
        // The folder gets the name that `remove_stale` looks for only once its lock is held.
        let hidden = temp.join(format!(".{name}"));
        for folder in ["run", "log", "spool", "dev", "local"] {
            fs::create_dir_all(hidden.join(folder)).map_err(io("make", hidden.join(folder)))?;
        }
        let pid = hidden.join(LOCK);
        fs::write(&pid, format!("{}\n", std::process::id())).map_err(io("write", &pid))?;
        let lock = File::open(&pid).map_err(io("open", &pid))?;
        lock.lock().map_err(io("lock", &pid))?;
        let path = temp.join(&name);
        fs::rename(&hidden, &path).map_err(io("make", &path))?;
        Ok(Self { path, name, _lock: lock })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes one file of the folder.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), TestbedError> {
        fs::write(self.file(name), content).map_err(io("write", self.file(name)))
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove(&self.path, &self.name);
    }
}

fn remove(path: &Path, name: &str) {
    cgroup::remove(name);
    // Another process may have removed it; what cannot be removed now, the next start tries again.
    let _ = fs::remove_dir_all(path);
}

/// Removes the folders and control groups of clusters whose process is gone. Their own processes
/// ended with it.
pub(crate) fn remove_stale() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path(), &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_clusters_are_removed() {
        let alive = Base::create().unwrap();
        let dead = std::env::temp_dir().join(format!("{PREFIX}dead-{}", std::process::id()));
        fs::create_dir_all(dead.join("run")).unwrap();
        fs::write(dead.join(LOCK), "1\n").unwrap();
        remove_stale();
        assert!(!dead.exists());
        assert!(alive.file("run").is_dir());
        let path = alive.path.clone();
        drop(alive);
        assert!(!path.exists());
    }
}
