//! The job allocation: nodes and ranks from the scheduler, and this process's rank.

use serde::{Deserialize, Serialize};

use crate::Document;

/// Host name of a node that the launcher does not name.
pub const UNKNOWN_HOST: &str = "?";

/// The source of the node list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Slurm.
    Slurm,
    /// PBS Professional, OpenPBS.
    Pbs,
    /// Flux.
    Flux,
    /// A host file.
    Hostfile,
    /// No scheduler: the local node.
    #[default]
    None,
}

/// The launcher that started this process as a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// `srun`.
    Srun,
    /// HPE's PALS `mpiexec`.
    Pals,
    /// `flux run`.
    Flux,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Hydra: MPICH's or Intel MPI's `mpiexec`.
    Hydra,
    /// Another PMIx launcher.
    Pmix,
    /// torchrun or DeepSpeed's launcher, which set the framework's own variables.
    Torch,
}

/// How global ranks are distributed over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Consecutive ranks on one node, then the next node.
    #[default]
    Block,
    /// Round robin over the nodes.
    Cyclic,
}

/// The identity of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankId {
    /// Global rank.
    pub rank: u32,
    /// World size.
    pub size: u32,
    /// Local rank: its index on the node.
    pub local_rank: u32,
    /// Ranks on the node.
    pub local_size: u32,
    /// Index of the node in [`Allocation::nodes`], if the launcher or the host name determines it.
    pub node: Option<u32>,
}

/// One node of the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedNode {
    /// Host name as the scheduler spells it.
    pub host: String,
    /// Ranks on the node, if the scheduler or launcher specifies them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
}

/// A variable or file that the allocation was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Name of the variable, or `file`.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The nodes and ranks of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The source of the node list.
    pub scheduler: Scheduler,
    /// The launcher of this process, if it is a rank.
    pub launcher: Option<Launcher>,
    /// The scheduler's job ID.
    pub job_id: Option<String>,
    /// The scheduler's cluster name.
    pub cluster: Option<String>,
    /// The nodes in the scheduler's order. A node that the launcher does not name is
    /// [`UNKNOWN_HOST`].
    pub nodes: Vec<AllocatedNode>,
    /// How global ranks are distributed over the nodes.
    pub distribution: Distribution,
    /// The identity of this process, if it is a rank.
    #[serde(alias = "me")]
    pub this_rank: Option<RankId>,
    /// What the allocation was read from.
    pub evidence: Vec<Evidence>,
}

impl Allocation {
    /// An allocation of these nodes, with everything else unknown.
    pub fn new(scheduler: Scheduler, nodes: Vec<AllocatedNode>) -> Self {
        Self { scheduler, nodes, ..Self::default() }
    }

    /// The local node only, without a scheduler.
    pub fn single_node(host: &str) -> Self {
        let node = AllocatedNode { host: host.to_owned(), ranks: None };
        Self::new(Scheduler::None, vec![node])
    }

    /// Whether the names of all nodes are known.
    pub fn all_hosts_known(&self) -> bool {
        self.nodes.iter().all(|n| n.host != UNKNOWN_HOST)
    }
}

impl Document for Allocation {
    const KIND: &'static str = "allocation";
    const VERSION: u32 = 1;
}
