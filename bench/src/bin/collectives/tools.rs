//! What the peers' programs are made of.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Open MPI and MPICH, and what compiles for them.
pub const MPIS: [(&str, &str); 2] = [("Open MPI", "mpicc.openmpi"), ("MPICH", "mpicc.mpich")];

/// A folder that is gone with this.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("regatta-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// The MPI program, if it can be compiled.
pub fn compiled(compiler: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join(compiler);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(&program).arg(source("collectives.c")).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success()).then_some(program)
}

/// A Python that has PyTorch.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGATTA_BENCH_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|s| s.success()).then_some(python)
}

/// What a command printed, if it ended well.
pub fn printed(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.output().context(name.clone())?;
    if !out.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
