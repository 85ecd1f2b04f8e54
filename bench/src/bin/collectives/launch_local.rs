//! All ranks on this machine.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use regatta_benchmarks::{stdout_of, take_log};

use crate::{Launcher, Peer, RANK};

/// Runs a program once and returns rank 0's output.
pub fn run(
    regatta: &Path,
    ranks: u32,
    run_dir: &Path,
    peer: &Peer,
    arguments: &[String],
) -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let binding = if ranks > cores { "none" } else { "core" };
    let (program, ranks) = (&peer.program, ranks.to_string());
    let mut command = match peer.launcher {
        Launcher::Mpich => Command::new("mpiexec.hydra"),
        Launcher::OpenMpi => Command::new("mpirun.openmpi"),
        Launcher::Regatta => {
            let mut command = Command::new(regatta);
            command.args(["launch", "--oversubscribe", "--no-gpus", "-n", &ranks]);
            command.arg("--run-dir").arg(run_dir).arg("--").args(program).args(arguments);
            stdout_of(command.env(RANK, "1"))?;
            return take_log(run_dir);
        }
    };
    match peer.launcher {
        Launcher::OpenMpi => {
            command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", binding]);
        }
        _ => drop(command.args(["-bind-to", binding])),
    }
    stdout_of(command.args(["-n", &ranks]).args(program).args(arguments))
}
