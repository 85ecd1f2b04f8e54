//! One rank per simulated host: network namespaces of this machine, connected by a bridge.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use regatta_testbed::Cluster;
use regatta_wire::secret::Secret;

use crate::mpi_tools::{MPIS, compile_mpi, python, source, stdout_of};
use crate::{Contestants, Peer, RANK, arguments};

const PORT: &str = "7077";
/// The network of the hosts.
const NETWORK: &str = "10.77.0.0/24";

/// Creates the hosts and passes all implementations to `work`.
pub fn with_peers(
    ranks: u32,
    bytes: &[u64],
    work: impl FnOnce(Contestants<'_>) -> Result<()>,
) -> Result<()> {
    let cluster = Cluster::builder().nodes(ranks).slurm(false).build()?;
    let secret = secret_file(cluster.shared())?;
    let (cluster, secret) = (&cluster, &secret);
    let own = std::env::current_exe()?;
    let launched = |name: &'static str, program: Vec<PathBuf>| {
        let arguments = arguments(name, ranks, bytes);
        let run = move || launch(cluster, secret, &program, &arguments);
        Peer { name, run: Box::new(run) }
    };
    let mut all = vec![launched("ours", vec![own])];
    let mut missing = Vec::new();
    for (name, compiler) in MPIS {
        match compile_mpi(compiler, cluster.shared()) {
            Some(program) => {
                let run = move || mpi(cluster, name, &program, bytes);
                all.push(Peer { name, run: Box::new(run) });
            }
            None => missing.push(name),
        }
    }
    match python() {
        Some(python) => all.push(launched("gloo", vec![python, source("collectives.py")])),
        None => missing.push("gloo"),
    }
    work((all, missing))
}

/// The job's secret, readable by the user only.
fn secret_file(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&path)?;
    file.write_all(Secret::generate()?.to_hex().as_bytes())?;
    Ok(path)
}

/// Runs one rank per host with a launcher's environment; returns rank 0's output.
fn launch(
    cluster: &Cluster,
    secret: &Path,
    program: &[PathBuf],
    arguments: &[String],
) -> Result<String> {
    let nodes = cluster.nodes();
    let mut children = Vec::new();
    for (rank, node) in nodes.iter().enumerate() {
        let mut command = cluster.on(node, &program[0], &program[1..])?;
        command.args(arguments).env(RANK, "1").env("REGATTA_SECRET_FILE", secret);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", nodes.len().to_string());
        command.env("MASTER_ADDR", &nodes[0]).env("MASTER_PORT", PORT);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        children.push(command.spawn().context("a rank")?);
    }
    let mut text = None;
    for (rank, child) in children.into_iter().enumerate() {
        let out = child.wait_with_output()?;
        if !out.status.success() {
            bail!("rank {rank}: {}", String::from_utf8_lossy(&out.stderr));
        }
        text.get_or_insert(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    text.context("no ranks")
}

/// MPI is restricted to TCP, so that it does not use shared memory between the hosts.
fn mpi(cluster: &Cluster, name: &str, program: &Path, bytes: &[u64]) -> Result<String> {
    let nodes = cluster.nodes().join(",");
    let ssh = cluster.ssh_shim();
    let mut command: Command = match name {
        "MPICH" => {
            let mut command = cluster.launcher("mpiexec.hydra", ["-launcher", "ssh"]);
            command.arg("-launcher-exec").arg(ssh).args(["-hosts", &nodes, "-ppn", "1"]);
            command.args(["-genv", "MPIR_CVAR_NOLOCAL", "1", "-genv", "FI_PROVIDER", "tcp"]);
            command
        }
        _ => {
            let mut command = cluster.launcher("mpirun.openmpi", ["--mca", "plm_rsh_agent"]);
            command.arg(ssh).args(["--allow-run-as-root", "--bind-to", "none", "--host", &nodes]);
            command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
            command.args(["--mca", "btl_tcp_if_include", NETWORK]);
            command.args(["--mca", "oob_tcp_if_include", NETWORK]);
            command
        }
    };
    let ranks = cluster.nodes().len() as u32;
    command.args(["-n", &ranks.to_string()]).arg(program);
    stdout_of(command.args(arguments(name, ranks, bytes)))
}
