//! A cluster's directory, and the removal of those left behind by killed tests.
//!
//! The directory contains a locked file while its cluster exists: a lock, unlike a process ID, is
//! never reused.

use crate::cgroup;
use crate::error::{TestbedError, io};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "regatta-testbed-";
const LOCK: &str = "pid";

/// The directory of one cluster; dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct ClusterDir {
    pub(crate) path: PathBuf,
    /// Unique name of the cluster on this machine.
    pub(crate) name: String,
    _lock: File,
}

impl ClusterDir {
    /// Creates a new directory below the system's temporary directory.
    pub(crate) fn create() -> Result<Self, TestbedError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{}-{count}", pid_namespace()?, std::process::id());
        let temp = fs::canonicalize(std::env::temp_dir())
            .map_err(io("find", "the temporary directory"))?;
        // The directory gets the name that `remove_stale` looks for only once its lock is held.
        let hidden = temp.join(format!(".{name}"));
        for dir in ["run", "log", "spool", "dev", "local"] {
            fs::create_dir_all(hidden.join(dir)).map_err(io("create", hidden.join(dir)))?;
        }
        let pid = hidden.join(LOCK);
        fs::write(&pid, format!("{}\n", std::process::id())).map_err(io("write", &pid))?;
        let lock = File::open(&pid).map_err(io("open", &pid))?;
        lock.lock().map_err(io("lock", &pid))?;
        let path = temp.join(&name);
        fs::rename(&hidden, &path).map_err(io("create", &path))?;
        Ok(Self { path, name, _lock: lock })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file of the directory.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), TestbedError> {
        fs::write(self.file(name), content).map_err(io("write", self.file(name)))
    }
}

impl Drop for ClusterDir {
    fn drop(&mut self) {
        remove(&self.path, &self.name);
    }
}

/// The number of this process's PID namespace: processes of other namespaces, which share the control groups
/// with this one, may have the same process ID.
fn pid_namespace() -> Result<String, TestbedError> {
    let link = Path::new("/proc/self/ns/pid");
    let target = fs::read_link(link).map_err(io("read", link))?;
    Ok(target.to_string_lossy().chars().filter(char::is_ascii_digit).collect())
}

fn remove(path: &Path, name: &str) {
    cgroup::remove(name);
    // Another process may have removed it; the next start retries what fails now.
    let _ = fs::remove_dir_all(path);
}

/// Removes the directories and control groups of clusters whose process is gone, and whose own
/// processes have exited with it.
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
    fn only_stale_clusters_are_removed() {
        let alive = ClusterDir::create().unwrap();
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
