//! A running cluster.

use crate::affinity;
use crate::base::{Base, remove_stale};
use crate::builder::ClusterBuilder;
use crate::error::{TestbedError, io};
use crate::host::Host;
use crate::remote;
use crate::slurm;
use crate::sshd;
use crate::together::together;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first three numbers of every address; node `i` has the address `NETWORK.i`.
pub(crate) const NETWORK: &str = "10.77.0";
/// The same of the second network, whose device is `eth1`.
const SECOND_NETWORK: &str = "10.78.0";
/// The login host's last number.
pub(crate) const LOGIN_NUMBER: u32 = 254;
const LOGIN: &str = "login";
const SLURM_CONF: &str = "slurm.conf";

/// Hosts `login`, `node1`, `node2`, … on one machine. Dropping it ends all their processes and
/// removes all their files.
#[derive(Debug)]
pub struct Cluster {
    // Fields are dropped in this order: the folder goes when no process can write to it any more.
    login: Host,
    hosts: Vec<Host>,
    switch: Host,
    names: Vec<String>,
    topology: Option<PathBuf>,
    /// What the environment of every command has beyond its own.
    variables: Vec<String>,
    base: Base,
}

impl Cluster {
    /// Starts to say what a cluster is to be like.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// What this machine lacks for a plain cluster with Slurm; empty if nothing.
    pub fn missing() -> Vec<String> {
        Self::builder().missing()
    }

    /// As [`Cluster::missing`], in one sentence.
    pub fn why_not() -> Option<String> {
        Some(Self::missing().join("; ")).filter(|text| !text.is_empty())
    }

    pub(crate) fn start(builder: &ClusterBuilder) -> Result<Self, TestbedError> {
        remove_stale();
        let base = Base::create()?;
        let names: Vec<String> = (1..=builder.nodes).map(|n| format!("node{n}")).collect();
        base.write("etc-hosts", hosts_file(&names))?;
        let topology = match &builder.topology {
            Some(topology) => Some(copy_topology(&base, &topology.xml)?),
            None => None,
        };
        let mut variables = Vec::new();
        if builder.slurm {
            variables.push(format!("SLURM_CONF={}", base.file(SLURM_CONF).display()));
        }
        if builder.fake_affinity {
            variables.extend(affinity::build(&base, builder.cpus, topology.as_deref())?);
        }
        if builder.slurm {
            slurm::configure(&base, builder)?;
        }
        if builder.ssh {
            sshd::configure(&base, NETWORK, &variables, topology.as_deref())?;
        }
        let switch = Host::switch()?;
        let (login, hosts) = start_hosts(builder, &base, &switch, &names)?;
        remote::write(&base, &hosts, &variables, topology.as_deref())?;
        let cluster = Self { login, hosts, switch, names, topology, variables, base };
        if builder.ssh {
            together(&cluster.hosts, |host| sshd::start(&cluster.base, host))?;
            sshd::wait(&cluster.base, &cluster.hosts)?;
        }
        if builder.slurm {
            slurm::start(&cluster)?;
        }
        Ok(cluster)
    }

    /// The nodes' names, without the login host.
    pub fn nodes(&self) -> &[String] {
        &self.names
    }

    /// The cluster's folder, which every host shows at this path, as this machine does; commands
    /// start there. Its `local` is each host's own, and so are `/tmp` and `/dev/shm`.
    pub fn shared(&self) -> &Path {
        &self.base.path
    }

    /// Where Slurm's configuration is.
    pub fn slurm_conf(&self) -> PathBuf {
        self.base.file(SLURM_CONF)
    }

    /// The hwloc file of the nodes, where every host sees it, if one was given.
    pub fn topology(&self) -> Option<&Path> {
        self.topology.as_deref()
    }

    /// The number of the process whose death is the host's: kill it to make a node crash.
    pub fn holder(&self, host: &str) -> Result<u32, TestbedError> {
        Ok(self.find(host)?.holder())
    }

    /// A command that runs on a host. Its environment is this process's and what one adds to it,
    /// with `SLURM_CONF` and the preloaded library where they apply.
    pub fn on<P, I, A>(&self, host: &str, program: P, args: I) -> Result<Command, TestbedError>
    where
        P: AsRef<OsStr>,
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        Ok(self.command(self.find(host)?, program, args))
    }

    /// A command that runs on the login host.
    pub fn login<P, I, A>(&self, program: P, args: I) -> Command
    where
        P: AsRef<OsStr>,
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        self.command(&self.login, program, args)
    }

    /// A real ssh and its options, to be followed by a node's name and a command; for the login host
    /// of a cluster that was built with [`ClusterBuilder::ssh`].
    pub fn ssh_command(&self) -> Vec<String> {
        let config = sshd::client_config(&self.base).display().to_string();
        vec!["ssh".to_owned(), "-F".to_owned(), config]
    }

    /// What stands in for ssh: `ssh node1 hostname` runs a command on a node, in a new environment.
    /// Only commands made by [`Cluster::launcher`] can use it.
    pub fn ssh(&self) -> PathBuf {
        self.base.file(remote::NAME)
    }

    /// A command that starts others by [`Cluster::ssh`], as `mpiexec` does: it has the name and the
    /// network of the login host, and the files and processes of this machine.
    pub fn launcher<P, I, A>(&self, program: P, args: I) -> Command
    where
        P: AsRef<OsStr>,
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let mut command = self.login.enter_network();
        command.arg(program).args(args).current_dir(&self.base.path);
        command
    }

    fn command<P, I, A>(&self, host: &Host, program: P, args: I) -> Command
    where
        P: AsRef<OsStr>,
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let mut command = host.enter();
        // `env` comes after `nsenter`, so that the library is loaded only inside the host.
        command.arg("env").arg("-C").arg(&self.base.path);
        command.args(&self.variables).arg(program).args(args);
        command
    }

    pub(crate) fn switch(&self) -> &Host {
        &self.switch
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Host, TestbedError> {
        let mut all = std::iter::once(&self.login).chain(&self.hosts);
        all.find(|h| h.name == name).ok_or_else(|| TestbedError::NoHost {
            name: name.to_owned(),
            known: format!("{LOGIN}, {}", self.names.join(", ")),
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once; the fields' own drops then wait for each.
        self.login.release();
        self.hosts.iter_mut().for_each(Host::release);
    }
}

/// Starts all hosts at once and joins them to the switch.
fn start_hosts(
    builder: &ClusterBuilder,
    base: &Base,
    switch: &Host,
    names: &[String],
) -> Result<(Host, Vec<Host>), TestbedError> {
    let mut shared = builder.shared.clone();
    shared.push(base.path.clone());
    let mut all = vec![(LOGIN, LOGIN_NUMBER)];
    all.extend(names.iter().map(String::as_str).zip(1..));
    let mut hosts = together(&all, |(name, number)| {
        let host = Host::start(name, base, &shared)?;
        host.join(switch, &format!("{NETWORK}.{number}/24"))?;
        if builder.second_network {
            host.join_second(switch, &format!("{SECOND_NETWORK}.{number}/24"))?;
        }
        Ok(host)
    })?;
    let login = hosts.remove(0);
    Ok((login, hosts))
}

fn hosts_file(names: &[String]) -> String {
    let mut text = format!("127.0.0.1 localhost\n{NETWORK}.{LOGIN_NUMBER} {LOGIN}\n");
    for (number, name) in (1..).zip(names) {
        let number: u32 = number;
        text += &format!("{NETWORK}.{number} {name}\n");
    }
    text
}

fn copy_topology(base: &Base, xml: &Path) -> Result<PathBuf, TestbedError> {
    let copy = base.file("topology.xml");
    fs::copy(xml, &copy).map_err(io("copy", xml))?;
    Ok(copy)
}
