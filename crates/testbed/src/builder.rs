//! Configuration of a cluster.

use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::{cgroup, requirements};
use std::path::PathBuf;

/// A /24 network minus the login host and reserved addresses.
const MAX_NODES: u32 = 250;

/// Emulated CPU topology of a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeTopology {
    pub(crate) xml: PathBuf,
    pub(crate) slurm: String,
}

/// Configures a cluster; [`ClusterBuilder::build`] starts it.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    pub(crate) nodes: u32,
    pub(crate) gpus: u32,
    pub(crate) cpus: u32,
    pub(crate) topology: Option<NodeTopology>,
    pub(crate) constrain_devices: bool,
    pub(crate) constrain_cores: bool,
    pub(crate) fake_affinity: bool,
    pub(crate) slurm: bool,
    pub(crate) ssh: bool,
    pub(crate) second_network: bool,
    pub(crate) shared: Vec<PathBuf>,
}

impl Default for ClusterBuilder {
    /// Two nodes with Slurm, this machine's CPUs, no GPUs and no constraints.
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
            shared: target_dir().into_iter().collect(),
        }
    }
}

/// Defines methods that set a field.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        impl ClusterBuilder {
            $($(#[$doc])*
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })*
        }
    };
}

setters! {
    /// Number of nodes, named `node1`, `node2` and so on.
    nodes: u32,
    /// GPUs per node, as device files without a driver.
    gpus: u32,
    /// Whether a task can open only its own GPUs, and so numbers them from 0.
    constrain_devices: bool,
    /// Whether Slurm confines tasks to their cores by cpusets.
    constrain_cores: bool,
    /// Whether programs can bind to CPUs and NUMA nodes that the machine lacks. Only libc calls are
    /// intercepted: direct system calls and `/proc/self/status` show the real affinity.
    fake_affinity: bool,
    /// Whether to run Slurm; without it there are only hosts and a network.
    slurm: bool,
    /// Whether to run an sshd on every node, for [`Cluster::ssh_command`].
    ssh: bool,
    /// Whether hosts have a second network, on `eth1`, with the address `10.78.0.i` for node `i`.
    second_network: bool,
}

impl ClusterBuilder {
    /// CPUs per node, one core each. CPUs that the machine lacks can be allocated, but bound to only
    /// with [`fake_affinity`](Self::fake_affinity).
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self.topology = None;
        self
    }

    /// A node topology from a hwloc XML file with `cpus` hardware threads; `slurm` is the equivalent
    /// in `slurm.conf` syntax, such as `Sockets=1 CoresPerSocket=64 ThreadsPerCore=2`.
    pub fn topology(mut self, xml: impl Into<PathBuf>, cpus: u32, slurm: &str) -> Self {
        self.cpus = cpus;
        self.topology = Some(NodeTopology { xml: xml.into(), slurm: slurm.to_owned() });
        self
    }

    /// A directory that every host sees at the same path. All directories are shared except those
    /// below `/tmp`, of which only the cluster's own and cargo's target directory are.
    pub fn share(mut self, dir: impl Into<PathBuf>) -> Self {
        self.shared.push(dir.into());
        self
    }

    /// What this machine lacks for such a cluster; empty if nothing.
    pub fn missing(&self) -> Vec<String> {
        requirements::missing(self)
    }

    /// Starts the cluster and waits until its nodes are ready. Dropping it removes it.
    pub fn build(&self) -> Result<Cluster, TestbedError> {
        self.check()?;
        Cluster::start(self)
    }

    fn check(&self) -> Result<(), TestbedError> {
        let invalid = |text: String| Err(TestbedError::InvalidConfig(text));
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return invalid(format!("{} nodes requested; use 1 to {MAX_NODES}", self.nodes));
        }
        if self.constrain_cores && self.fake_affinity {
            return invalid(
                "constrain_cores and fake_affinity exclude each other: a cpuset cannot contain \
                 emulated CPUs"
                    .to_owned(),
            );
        }
        match self.missing().as_slice() {
            [] => Ok(()),
            missing => Err(TestbedError::Missing(missing.join("; "))),
        }
    }

    /// Whether Slurm uses control groups: wherever available, because they leave no task behind.
    pub(crate) fn cgroups(&self) -> bool {
        cgroup::missing().is_empty()
    }
}

/// Cargo's target directory, which holds the running test as `<target>/<profile>/deps/<test>`.
fn target_dir() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let deps = test.parent().filter(|p| p.ends_with("deps"))?;
    Some(deps.parent()?.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_configurations_are_rejected() {
        let error = |b: ClusterBuilder| b.build().unwrap_err().to_string();
        assert!(error(Cluster::builder().nodes(0)).contains("0 nodes"));
        let both = Cluster::builder().constrain_cores(true).fake_affinity(true);
        assert!(error(both).contains("constrain_cores"));
    }

    #[test]
    fn target_dir_contains_this_test() {
        let test = std::env::current_exe().unwrap();
        assert!(test.starts_with(target_dir().unwrap()));
    }
}
