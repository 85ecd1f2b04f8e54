//! All ranks on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::mpi_tools::{MPIS, compile_mpi, python, source, stdout_of};
use crate::{Contestants, Peer, RANK, arguments};

pub fn peers<'a>(ranks: u32, bytes: &'a [u64], folder: &Path) -> Result<Contestants<'a>> {
    let own = std::env::current_exe()?;
    let regatta = own.with_file_name("regatta");
    if !regatta.is_file() {
        bail!("{}: not built; run `cargo xtask bench`", regatta.display());
    }
    let launched = |name: &'static str, program: Vec<PathBuf>| {
        let (regatta, folder) = (regatta.clone(), folder.join("run"));
        let arguments = arguments(name, ranks, bytes);
        let run = move || launch(&regatta, ranks, &folder, &program, &arguments);
        Peer { name, run: Box::new(run) }
    };
    let mut all = vec![launched("ours", vec![own])];
    let mut missing = Vec::new();
    for (name, compiler) in MPIS {
        match compile_mpi(compiler, folder) {
            Some(program) => {
                let run = move || mpi(name, ranks, &program, bytes);
                all.push(Peer { name, run: Box::new(run) });
            }
            None => missing.push(name),
        }
    }
    match python() {
        Some(python) => all.push(launched("gloo", vec![python, source("collectives.py")])),
        None => missing.push("gloo"),
    }
    Ok((all, missing))
}

fn mpi(name: &str, ranks: u32, program: &Path, bytes: &[u64]) -> Result<String> {
    let mut command = match name {
        "MPICH" => Command::new("mpiexec.hydra"),
        _ => Command::new("mpirun.openmpi"),
    };
    if name == "Open MPI" {
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.args(["-n", &ranks.to_string()]).arg(program).args(arguments(name, ranks, bytes));
    stdout_of(&mut command)
}

/// Runs a program under `regatta launch` and returns rank 0's log.
fn launch(
    regatta: &Path,
    ranks: u32,
    folder: &Path,
    program: &[PathBuf],
    arguments: &[String],
) -> Result<String> {
    let mut command = Command::new(regatta);
    command.args(["launch", "--oversubscribe", "--no-gpus", "-n", &ranks.to_string()]);
    command.arg("--run-dir").arg(folder).arg("--").args(program).args(arguments);
    stdout_of(command.env(RANK, "1"))?;
    let text = std::fs::read_to_string(folder.join("log/rank-0.out")).context("rank 0's log")?;
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok(text)
}
