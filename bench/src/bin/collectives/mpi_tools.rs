//! Compilers and interpreters of the peers' programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// MPI implementations and their compilers.
pub const MPIS: [(&str, &str); 2] = [("Open MPI", "mpicc.openmpi"), ("MPICH", "mpicc.mpich")];

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Compiles the MPI program, if the compiler is installed.
pub fn compile_mpi(compiler: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join(compiler);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(&program).arg(source("collectives.c")).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success()).then_some(program)
}

/// A Python with PyTorch.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGATTA_BENCH_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|s| s.success()).then_some(python)
}

/// The output of a successful command.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.output().context(name.clone())?;
    if !out.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
