//! Memory cgroups.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A memory cgroup (v1 or v2) with a limit, removed on drop.
pub struct MemoryCgroup(pub PathBuf);

impl MemoryCgroup {
    /// Creates a cgroup; `None` with a message if that is not permitted.
    pub fn or_skip(name: &str, limit: u64) -> Option<Self> {
        let created = Self::create(name, limit);
        created.inspect_err(|e| eprintln!("skipped: cannot create a memory cgroup: {e}")).ok()
    }

    fn create(name: &str, limit: u64) -> io::Result<Self> {
        let [v1, v2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let is_v1 = v1.join("memory.limit_in_bytes").exists();
        if !is_v1 {
            let _ = std::fs::write(v2.join("cgroup.subtree_control"), "+memory");
        }
        let parent = if is_v1 { v1 } else { v2 };
        let path = parent.join(format!("regatta-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path)?;
        let cgroup = Self(path);
        // Swap would defeat the limit. Without swap accounting these files do not exist.
        if is_v1 {
            cgroup.set("memory.limit_in_bytes", limit)?;
            let _ = cgroup.set("memory.memsw.limit_in_bytes", limit);
        } else {
            cgroup.set("memory.max", limit)?;
            let _ = cgroup.set("memory.swap.max", 0);
        }
        Ok(cgroup)
    }

    fn set(&self, file: &str, bytes: u64) -> io::Result<()> {
        std::fs::write(self.0.join(file), bytes.to_string())
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A cgroup stays busy for a moment after its last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
