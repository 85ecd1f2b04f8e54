//! One rank per simulated host: network namespaces of this machine, connected by a bridge.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use regatta_benchmarks::stdout_of;
use regatta_testbed::Cluster;
use regatta_wire::secret::Secret;

use crate::{Launcher, Peer, RANK};

const PORT: &str = "7077";
/// The network of the hosts.
const NETWORK: &str = "10.77.0.0/24";

/// Simulated hosts with one rank each.
pub struct Hosts {
    cluster: Cluster,
    /// File of the job's secret, readable by the user only.
    secret: PathBuf,
}

impl Hosts {
    pub fn new(ranks: u32) -> Result<Self> {
        let cluster = Cluster::builder().nodes(ranks).slurm(false).build()?;
        let secret = cluster.shared().join("secret");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create_new(true).write(true).mode(0o600).open(&secret)?;
        file.write_all(Secret::generate()?.to_hex().as_bytes())?;
        Ok(Self { cluster, secret })
    }

    /// A folder that all hosts share.
    pub fn folder(&self) -> &Path {
        self.cluster.shared()
    }

    /// Runs a program once and returns rank 0's output.
    pub fn run(&self, peer: &Peer, arguments: &[String]) -> Result<String> {
        let (cluster, program) = (&self.cluster, &peer.program);
        let nodes = cluster.nodes().join(",");
        let ssh = cluster.ssh_shim();
        // MPI is restricted to TCP, so that it does not use shared memory between the hosts.
        let mut command = match peer.launcher {
            Launcher::Regatta => return self.launch(program, arguments),
            Launcher::Mpich => {
                let mut command = cluster.launcher("mpiexec.hydra", ["-launcher", "ssh"]);
                command.arg("-launcher-exec").arg(ssh).args(["-hosts", &nodes, "-ppn", "1"]);
                command.args(["-genv", "MPIR_CVAR_NOLOCAL", "1", "-genv", "FI_PROVIDER", "tcp"]);
                command
            }
            Launcher::OpenMpi => {
                let mut command = cluster.launcher("mpirun.openmpi", ["--mca", "plm_rsh_agent"]);
                command.arg(ssh).args(["--allow-run-as-root", "--bind-to", "none"]);
                command.args(["--host", &nodes]);
                command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
                command.args(["--mca", "btl_tcp_if_include", NETWORK]);
                command.args(["--mca", "oob_tcp_if_include", NETWORK]);
                command
            }
        };
        command.args(["-n", &cluster.nodes().len().to_string()]);
        stdout_of(command.args(program).args(arguments))
    }

    /// Runs one rank per host with a launcher's environment; returns rank 0's output.
    fn launch(&self, program: &[PathBuf], arguments: &[String]) -> Result<String> {
        let nodes = self.cluster.nodes();
        let mut children = Vec::new();
        for (rank, node) in nodes.iter().enumerate() {
            let mut command = self.cluster.on(node, &program[0], &program[1..])?;
            command.args(arguments).env(RANK, "1").env("REGATTA_SECRET_FILE", &self.secret);
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
}
