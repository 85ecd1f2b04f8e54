//! A running cluster.

use crate::affinity;
use crate::builder::ClusterBuilder;
use crate::cluster_dir::{ClusterDir, remove_stale};
use crate::command::{CommandOutput, run};
use crate::error::{TestbedError, io};
use crate::host::Host;
use crate::parallel::parallel_map;
use crate::slurm;
use crate::ssh_shim;
use crate::sshd;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Network prefix; node `i` has the address `NETWORK.i`.
pub(crate) const NETWORK: &str = "10.77.0";
/// Prefix of the second network, on `eth1`.
const SECOND_NETWORK: &str = "10.78.0";
/// Host part of the login host's address.
pub(crate) const LOGIN_ADDRESS: u32 = 254;
const LOGIN: &str = "login";
const SLURM_CONF: &str = "slurm.conf";

/// Hosts `login`, `node1`, `node2`, … on one machine. Dropping it kills all their processes and
/// removes all their files.
#[derive(Debug)]
pub struct Cluster {
    // Drop order: the directory is removed when no process can write to it any more.
    login: Host,
    hosts: Vec<Host>,
    switch: Host,
    names: Vec<String>,
    topology: Option<PathBuf>,
    /// Environment variables added to every command.
    variables: Vec<String>,
    dir: ClusterDir,
}

/// Arguments of a command.
pub trait Args: IntoIterator<Item: AsRef<OsStr>> {}

impl<I: IntoIterator<Item: AsRef<OsStr>>> Args for I {}

impl Cluster {
    /// Starts to configure a cluster.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// What this machine lacks for a default cluster with Slurm; empty if nothing.
    pub fn missing() -> Vec<String> {
        Self::builder().missing()
    }

    pub(crate) fn start(builder: &ClusterBuilder) -> Result<Self, TestbedError> {
        remove_stale();
        let dir = ClusterDir::create()?;
        let names: Vec<String> = (1..=builder.nodes).map(|n| format!("node{n}")).collect();
        dir.write("etc-hosts", hosts_file(&names))?;
        let topology =
            builder.topology.as_ref().map(|t| copy_topology(&dir, &t.xml)).transpose()?;
        let mut variables = Vec::new();
        if builder.slurm {
            variables.push(format!("SLURM_CONF={}", dir.file(SLURM_CONF).display()));
        }
        if builder.fake_affinity {
            variables.extend(affinity::build(&dir, builder.cpus, topology.as_deref())?);
        }
        if builder.slurm {
            slurm::configure(&dir, builder)?;
        }
        if builder.ssh {
            sshd::configure(&dir, NETWORK, &variables, topology.as_deref())?;
        }
        let switch = Host::switch()?;
        let (login, hosts) = start_hosts(builder, &dir, &switch, &names)?;
        ssh_shim::write(&dir, &hosts, &variables, topology.as_deref())?;
        let cluster = Self { login, hosts, switch, names, topology, variables, dir };
        if builder.ssh {
            parallel_map(&cluster.hosts, |host| sshd::start(&cluster.dir, host))?;
            sshd::wait(&cluster.dir, &cluster.hosts)?;
        }
        if builder.slurm {
            slurm::start(&cluster)?;
        }
        Ok(cluster)
    }

    /// Names of the nodes, without the login host.
    pub fn nodes(&self) -> &[String] {
        &self.names
    }

    /// The cluster's directory, visible to every host and this machine at the same path, and the
    /// working directory of commands. Its `local`, `/tmp` and `/dev/shm` are private to each host.
    pub fn shared(&self) -> &Path {
        &self.dir.path
    }

    /// The hwloc XML file of the nodes, visible to every host.
    pub fn topology(&self) -> Option<&Path> {
        self.topology.as_deref()
    }

    /// Process ID of the host's namespace holder; killing it crashes the host.
    pub fn host_pid(&self, host: &str) -> Result<u32, TestbedError> {
        Ok(self.find(host)?.host_pid())
    }

    /// A command on a host. It inherits this process's environment, with `SLURM_CONF` and the
    /// preloaded library where they apply.
    pub fn on(
        &self,
        host: &str,
        program: impl AsRef<OsStr>,
        args: impl Args,
    ) -> Result<Command, TestbedError> {
        Ok(self.command(self.find(host)?, program, args))
    }

    /// Runs a script on a host by `bash`, with a timeout of a minute.
    pub fn bash(&self, host: &str, script: &str) -> Result<CommandOutput, TestbedError> {
        run(&mut self.on(host, "bash", ["-c", script])?)
    }

    /// A command on the login host.
    pub fn login(&self, program: impl AsRef<OsStr>, args: impl Args) -> Command {
        self.command(&self.login, program, args)
    }

    /// OpenSSH with its options, to be followed by a node's name and a command, for use on the login
    /// host. Requires [`ClusterBuilder::ssh`].
    pub fn ssh_command(&self) -> Vec<String> {
        let config = sshd::client_config(&self.dir).display().to_string();
        vec!["ssh".to_owned(), "-F".to_owned(), config]
    }

    /// A substitute for ssh: `ssh node1 hostname` runs a command on a node, in a new environment.
    /// Usable only by commands of [`Cluster::launcher`].
    pub fn ssh_shim(&self) -> PathBuf {
        self.dir.file(ssh_shim::NAME)
    }

    /// A command that starts others through [`Cluster::ssh_shim`], as `mpiexec` does: it has the
    /// name and network of the login host, and the files and processes of this machine.
    pub fn launcher(&self, program: impl AsRef<OsStr>, args: impl Args) -> Command {
        let mut command = self.login.enter_network();
        command.arg(program).args(args).current_dir(&self.dir.path);
        command
    }

    fn command(&self, host: &Host, program: impl AsRef<OsStr>, args: impl Args) -> Command {
        let mut command = host.enter();
        // `env` runs inside the host, so that the library is not loaded into `nsenter`.
        command.arg("env").arg("-C").arg(&self.dir.path);
        command.args(&self.variables).arg(program).args(args);
        command
    }

    /// Name of the cluster, also of its control groups.
    pub(crate) fn name(&self) -> &str {
        &self.dir.name
    }

    pub(crate) fn switch(&self) -> &Host {
        &self.switch
    }

    /// The login host and the nodes.
    pub(crate) fn all_hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.login).chain(&self.hosts)
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Host, TestbedError> {
        self.all_hosts().find(|h| h.name == name).ok_or_else(|| TestbedError::NoHost {
            name: name.to_owned(),
            known: format!("{LOGIN}, {}", self.names.join(", ")),
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Release all first; the fields' drops then wait for each.
        self.login.release();
        self.hosts.iter_mut().for_each(Host::release);
    }
}

/// Starts all hosts in parallel and attaches them to the switch.
fn start_hosts(
    builder: &ClusterBuilder,
    dir: &ClusterDir,
    switch: &Host,
    names: &[String],
) -> Result<(Host, Vec<Host>), TestbedError> {
    let mut shared = builder.shared.clone();
    shared.push(dir.path.clone());
    let mut all = vec![(LOGIN, LOGIN_ADDRESS)];
    all.extend(names.iter().map(String::as_str).zip(1..));
    let mut hosts = parallel_map(&all, |(name, number)| {
        let host = Host::start(name, dir, &shared)?;
        host.attach(switch, &format!("{NETWORK}.{number}/24"))?;
        if builder.second_network {
            host.attach_second(switch, &format!("{SECOND_NETWORK}.{number}/24"))?;
        }
        Ok(host)
    })?;
    let login = hosts.remove(0);
    Ok((login, hosts))
}

fn hosts_file(names: &[String]) -> String {
    let mut text = format!("127.0.0.1 localhost\n{NETWORK}.{LOGIN_ADDRESS} {LOGIN}\n");
    for (number, name) in (1u32..).zip(names) {
        text += &format!("{NETWORK}.{number} {name}\n");
    }
    text
}

fn copy_topology(dir: &ClusterDir, xml: &Path) -> Result<PathBuf, TestbedError> {
    let copy = dir.file("topology.xml");
    fs::copy(xml, &copy).map_err(io("copy", xml))?;
    Ok(copy)
}
