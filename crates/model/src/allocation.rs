//! What the scheduler gave: nodes, ranks, and which of them this process is.

use serde::{Deserialize, Serialize};

use crate::Document;

/// The name of a node that the launcher keeps to itself.
pub const UNKNOWN_HOST: &str = "?";

/// Who handed out the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Slurm.
    Slurm,
    /// PBS Professional, OpenPBS.
    Pbs,
    /// Flux.
    Flux,
    /// A file with host names.
    Hostfile,
    /// Nobody: this machine alone.
    None,
}

/// Who started this process as a rank.
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
    /// Something else that speaks PMIx.
    Pmix,
    /// torchrun or DeepSpeed's launcher: the framework's own variables.
    Torch,
}

/// In which order ranks are dealt to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Fill a node, then the next.
    #[default]
    Block,
    /// One to each node, round and round.
    Cyclic,
}

/// Which rank this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankId {
    /// Its number in the job.
    pub rank: u32,
    /// How many ranks the job has.
    pub size: u32,
    /// Its number on the node.
    pub local_rank: u32,
    /// How many ranks are on the node.
    pub local_size: u32,
    /// The node's position in [`Allocation::nodes`], if the launcher or the host name tells.
    pub node: Option<u32>,
}

/// One node of the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedNode {
    /// Its name as the scheduler spells it.
    pub host: String,
    /// How many ranks the scheduler or launcher puts there, if it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
}

/// A variable or file that the allocation was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The variable's name, or `file`.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The nodes and ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Who handed out the nodes.
    pub scheduler: Scheduler,
    /// Who started this process as a rank, if it is one.
    pub launcher: Option<Launcher>,
    /// The scheduler's name for the job.
    pub job_id: Option<String>,
    /// The scheduler's name for the cluster.
    pub cluster: Option<String>,
    /// The nodes in the scheduler's order. A node whose name the launcher keeps to itself is
    /// called [`UNKNOWN_HOST`].
    pub nodes: Vec<AllocatedNode>,
    /// The order in which ranks are dealt to nodes.
    pub distribution: Distribution,
    /// Which rank this process is, if it is one.
    pub me: Option<RankId>,
    /// What this was read from.
    pub evidence: Vec<Evidence>,
}

impl Allocation {
    /// This machine alone.
    pub fn alone(host: &str) -> Self {
        Self {
            scheduler: Scheduler::None,
            launcher: None,
            job_id: None,
            cluster: None,
            nodes: vec![AllocatedNode { host: host.to_owned(), ranks: None }],
            distribution: Distribution::Block,
            me: None,
            evidence: Vec::new(),
        }
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
