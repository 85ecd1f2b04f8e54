//! The job specification: what the user requests.

use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// Rank counts and binding options of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    /// World size; `None`: from the allocation or `ranks_per_node`.
    pub ranks: Option<u32>,
    /// Ranks per node; `None`: from the allocation, else one per GPU, else one per NUMA node.
    pub ranks_per_node: Option<u32>,
    /// GPUs per rank; `None`: one, or all GPUs of the node if every node has one rank, which starts
    /// a worker per GPU itself, as torchrun does.
    pub gpus_per_rank: Option<u32>,
    /// Whether ranks are assigned GPUs.
    pub use_gpus: bool,
    /// Minimum cores per rank; `None`: an equal share of the cores local to its GPU.
    pub cores_per_rank: Option<u32>,
    /// Cores that no rank is bound to.
    pub reserve: ReservedCores,
    /// Hardware threads used per core.
    pub smt: SmtPolicy,
    /// Whether ranks may share a core if there are more ranks than cores.
    pub oversubscribe: bool,
    /// GPUs visible to a rank.
    pub visibility: GpuVisibility,
    /// NUMA memory binding of a rank.
    pub memory: MemoryBinding,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            ranks: None,
            ranks_per_node: None,
            gpus_per_rank: None,
            use_gpus: true,
            cores_per_rank: None,
            reserve: ReservedCores::None,
            smt: SmtPolicy::All,
            oversubscribe: false,
            visibility: GpuVisibility::All,
            memory: MemoryBinding::Prefer,
        }
    }
}

/// Cores reserved for the operating system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservedCores {
    /// None.
    #[default]
    None,
    /// The first core of each L3 group, as on LUMI and Frontier.
    FirstOfL3,
    /// The cores of these CPUs, including their SMT siblings.
    Cpus(CpuSet),
}

/// Hardware threads used per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmtPolicy {
    /// All usable threads.
    #[default]
    All,
    /// The first thread.
    One,
}

/// GPUs visible to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuVisibility {
    /// All GPUs of the node, in the runtime's order. Preserves peer-to-peer access.
    #[default]
    All,
    /// Only the rank's own GPUs, by environment variable.
    Own,
}

/// Requested NUMA memory binding of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryBinding {
    /// Prefer the NUMA nodes of the rank's cores; fall back to others when they are full.
    #[default]
    Prefer,
    /// Only the NUMA nodes of the rank's cores. The rank is killed when they are full.
    Bind,
    /// The kernel's default policy (first touch).
    #[serde(alias = "system")]
    Default,
}
