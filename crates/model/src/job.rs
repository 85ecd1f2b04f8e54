//! What the user asks for.

use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// How a job's ranks are to be laid out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Ranks in all; `None`: what the allocation or `ranks_per_node` says.
    pub ranks: Option<u32>,
    /// Ranks on each node; `None`: what the allocation says, else one a GPU, else one a NUMA node.
    pub ranks_per_node: Option<u32>,
    /// GPUs for each rank.
    pub gpus_per_rank: u32,
    /// Whether ranks get GPUs at all.
    pub use_gpus: bool,
    /// Cores each rank must have; `None`: an equal share of the cores near its GPU.
    pub cores_per_rank: Option<u32>,
    /// Cores that no rank gets.
    pub reserve: Reserve,
    /// Hardware threads of a core that are used.
    pub smt: SmtUse,
    /// Whether several ranks may share a core when there are more ranks than cores.
    pub oversubscribe: bool,
    /// Which GPUs a rank sees.
    pub visibility: Visibility,
    /// Where a rank's memory comes from.
    pub memory: MemoryChoice,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            ranks: None,
            ranks_per_node: None,
            gpus_per_rank: 1,
            use_gpus: true,
            cores_per_rank: None,
            reserve: Reserve::None,
            smt: SmtUse::All,
            oversubscribe: false,
            visibility: Visibility::All,
            memory: MemoryChoice::Prefer,
        }
    }
}

/// Cores left to the system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reserve {
    /// None.
    #[default]
    None,
    /// The first core of each L3 group, as on LUMI and Frontier.
    FirstOfL3,
    /// The cores of these CPUs, their other threads included.
    Cpus(CpuSet),
}

/// Which hardware threads of a core are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmtUse {
    /// All that are usable.
    #[default]
    All,
    /// The first one.
    One,
}

/// Which GPUs a rank sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visibility {
    /// All of the node's, in the runtime's order. Keeps peer-to-peer.
    #[default]
    All,
    /// Its own only, by environment variable.
    Own,
}

/// Where a rank's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryChoice {
    /// Its cores' NUMA nodes first, others when those are full.
    #[default]
    Prefer,
    /// Its cores' NUMA nodes only: the rank is killed when they are full.
    Bind,
    /// As the kernel does by default.
    System,
}
