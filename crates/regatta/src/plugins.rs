//! The plug-ins that this binary contains.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// File name of the NCCL profiler plug-in.
pub const PROFILER_NAME: &str = "libnccl-profiler-regatta.so";

/// The NCCL profiler plug-in, built by `build.rs`.
pub const PROFILER: &[u8] = include_bytes!(env!("REGATTA_PROFILER_LIBRARY"));

/// Writes the NCCL profiler plug-in to a folder, which is created if missing, and returns its path. A
/// process that has loaded an older one keeps it: the file is replaced, not changed.
pub fn install_profiler(folder: &Path) -> Result<PathBuf> {
    let path = folder.join(PROFILER_NAME);
    let part = folder.join(format!("{PROFILER_NAME}.{}", std::process::id()));
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut file = File::create(&part)?;
        file.write_all(PROFILER)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        std::fs::rename(&part, &path)
    };
    let written = write().inspect_err(|_| drop(std::fs::remove_file(&part)));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
