//! The NCCL plug-ins that this binary contains.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use miniz_oxide::inflate::decompress_to_vec;

/// A plug-in, the shared library of a dependency of this package.
#[derive(Debug, Clone, Copy)]
pub struct Plugin {
    /// File name of its library.
    pub name: &'static str,
    compressed: &'static [u8],
}

/// The profiler.
pub const PROFILER: Plugin = Plugin {
    name: "libnccl-profiler-regatta.so",
    compressed: regatta_embed::cdylib!("nccl_profiler_regatta"),
};

/// The tuner.
pub const TUNER: Plugin = Plugin {
    name: "libnccl-tuner-regatta.so",
    compressed: regatta_embed::cdylib!("nccl_tuner_regatta"),
};

/// The network over libfabric.
pub const NET: Plugin = Plugin {
    name: "libnccl-net-regatta.so",
    compressed: regatta_embed::cdylib!("nccl_net_regatta"),
};

/// All plug-ins.
const ALL: [Plugin; 3] = [PROFILER, TUNER, NET];

/// The library of the plug-in with a file name.
pub fn library(name: &str) -> Option<Vec<u8>> {
    ALL.iter().find(|plugin| plugin.name == name)?.library().ok()
}

impl Plugin {
    /// The library.
    fn library(&self) -> Result<Vec<u8>> {
        let damaged =
            |error| anyhow!("this program is damaged: {} inside of it: {error}", self.name);
        decompress_to_vec(self.compressed).map_err(damaged)
    }

    /// Writes the library to a folder, which is created if missing, and returns its path. A process that
    /// has loaded an older one keeps it: the file is replaced, not changed.
    pub fn install(&self, folder: &Path) -> Result<PathBuf> {
        let name = self.name;
        let library = self.library()?;
        let path = folder.join(name);
        let part = folder.join(format!("{name}.{}", std::process::id()));
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(folder)?;
            let mut file = File::create(&part)?;
            file.write_all(&library)?;
            file.set_permissions(Permissions::from_mode(0o755))?;
            std::fs::rename(&part, &path)
        };
        let written = write().inspect_err(|_| drop(std::fs::remove_file(&part)));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}
