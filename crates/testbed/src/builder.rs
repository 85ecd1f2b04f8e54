//! What a cluster is to be like.

use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::{cgroup, require};
use std::path::PathBuf;

/// The addresses of a /24 network, less the login host's.
const MAX_NODES: u32 = 250;

/// How many CPUs a node shows, and how they hang together.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub(crate) xml: PathBuf,
    pub(crate) slurm: String,
}

/// Says what a cluster is to be like; [`ClusterBuilder::up`] makes it.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    pub(crate) nodes: u32,
    pub(crate) gpus: u32,
    pub(crate) cpus: u32,
    pub(crate) topology: Option<Topology>,
    pub(crate) constrain_devices: bool,
    pub(crate) constrain_cores: bool,
    pub(crate) fake_affinity: bool,
    pub(crate) slurm: bool,
    pub(crate) ssh: bool,
    pub(crate) second_network: bool,
    pub(crate) shared: Vec<PathBuf>,
}

impl Default for ClusterBuilder {
    /// Two nodes with Slurm, this machine's CPUs, no GPU and no constraint.
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            nodes: 2,
            gpus: 0,
            cpus,
            topology: None,
            constrain_devices: false,
            constrain_cores: false,
            fake_affinity: false,
            slurm: true,
            ssh: false,
            second_network: false,
            shared: target_folder().into_iter().collect(),
        }
    }
}

impl ClusterBuilder {
    /// The number of nodes; they are called `node1`, `node2` and so on.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// GPUs a node, as Slurm sees them: device files, with nothing behind them.
    pub fn gpus(mut self, gpus: u32) -> Self {
        self.gpus = gpus;
        self
    }

    /// CPUs a node, each a core of its own. More than the machine has can be allocated, and bound
    /// to only with [`fake_affinity`](Self::fake_affinity).
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self.topology = None;
        self
    }

    /// A node like the one of a hwloc XML file, with `cpus` threads in all; `slurm` says the same
    /// in the words of `slurm.conf`, as in `Sockets=1 CoresPerSocket=64 ThreadsPerCore=2`.
    pub fn topology(mut self, xml: impl Into<PathBuf>, cpus: u32, slurm: &str) -> Self {
        self.cpus = cpus;
        self.topology = Some(Topology { xml: xml.into(), slurm: slurm.to_owned() });
        self
    }

    /// Whether a task can open only its own GPUs, and so counts them from 0.
    pub fn constrain_devices(mut self, yes: bool) -> Self {
        self.constrain_devices = yes;
        self
    }

    /// Whether Slurm confines a task to its cores by a cpuset.
    pub fn constrain_cores(mut self, yes: bool) -> Self {
        self.constrain_cores = yes;
        self
    }

    /// Whether programs may bind themselves to, and see themselves on, CPUs and NUMA nodes that the
    /// machine does not have. Only what asks libc is deceived: a program that makes the system call itself, and
    /// `/proc/self/status`, tell the truth.
    pub fn fake_affinity(mut self, yes: bool) -> Self {
        self.fake_affinity = yes;
        self
    }

    /// Whether to run Slurm; without it there are only hosts and a network.
    pub fn slurm(mut self, yes: bool) -> Self {
        self.slurm = yes;
        self
    }

    /// Whether to run an sshd on every node, which [`Cluster::ssh_command`] reaches from the login
    /// host.
    pub fn ssh(mut self, yes: bool) -> Self {
        self.ssh = yes;
        self
    }

    /// Whether hosts are on a second network too, by `eth1`: node `i` has the address `10.78.0.i`
    /// there.
    pub fn second_network(mut self, yes: bool) -> Self {
        self.second_network = yes;
        self
    }

    /// A folder that every host shows where this machine does. All are shown but those below
    /// `/tmp`, of which only the cluster's own and cargo's target folder are.
    pub fn share(mut self, folder: impl Into<PathBuf>) -> Self {
        self.shared.push(folder.into());
        self
    }

    /// What this machine lacks for such a cluster; empty if nothing.
    pub fn missing(&self) -> Vec<String> {
        require::missing(self)
    }

    /// Makes the cluster and waits until its nodes are ready. It goes when it is dropped.
    pub fn up(&self) -> Result<Cluster, TestbedError> {
        self.check()?;
        Cluster::start(self)
    }

    fn check(&self) -> Result<(), TestbedError> {
        let wrong = |text: String| Err(TestbedError::Settings(text));
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return wrong(format!("{} nodes asked for, 1 to {MAX_NODES} are possible", self.nodes));
        }
        if self.constrain_cores && self.fake_affinity {
            return wrong(
                "no cpuset can hold the CPUs that fake_affinity makes up; use only one of \
                          constrain_cores and fake_affinity"
                    .to_owned(),
            );
        }
        match self.missing().as_slice() {
            [] => Ok(()),
            missing => Err(TestbedError::Missing(missing.join("; "))),
        }
    }

    /// Whether Slurm is to use control groups: always where it can, for they leave no task behind.
    pub(crate) fn cgroups(&self) -> bool {
        cgroup::missing().is_empty()
    }
}

/// Cargo's target folder, which holds the running test as `<target>/<profile>/deps/<test>`.
fn target_folder() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let deps = test.parent().filter(|p| p.ends_with("deps"))?;
    Some(deps.parent()?.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let error = |b: ClusterBuilder| b.up().unwrap_err().to_string();
        assert!(error(Cluster::builder().nodes(0)).contains("0 nodes"));
        let both = Cluster::builder().constrain_cores(true).fake_affinity(true);
        assert!(error(both).contains("constrain_cores"));
    }

    #[test]
    fn the_target_folder_holds_this_test() {
        let test = std::env::current_exe().unwrap();
        assert!(test.starts_with(target_folder().unwrap()));
    }
}
